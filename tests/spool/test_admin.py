"""What was told of steps, made into one account of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings, strategies as st

from transfer.metrics.counters import peer_name
from transfer.spool import Lineage, Spool
from transfer.spool.client.admin import SpoolAdmin, Steps, merged, ranges
from transfer.spool.client.lineage import with_seed

#: (ranks tell twice, steps until the next acknowledgement, steps to go back before)
TOLD = st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 5)), max_size=12)


@settings(deadline=None)
@given(TOLD, st.none() | st.integers(0, 2**63 - 1))
def test_each_step_is_told_once_as_it_was_done_last(told, seed):
    model: dict[int, tuple[int, int, int]] = {}
    lineage, records, position, rows = Lineage(), [], 0, 8
    for twice, count, back in told:
        first = max(0, len(model) - back)
        if first < len(model):
            rows += 1  # another batch size: steps that are done anew have other rows
            position = model[first][1]
            model = {step: what for step, what in model.items() if step < first}
        for step in range(first, first + count):
            model[step] = (0, position, position + rows)
            lineage.add(step, 0, position, position + rows, 1)
            position += rows
        news = with_seed(lineage.between(first, first + count), seed)
        records += news * (2 if twice else 1)
    found = merged(Steps(*record) for record in records)
    assert [one.seed for one in found] == [seed] * len(found)
    assert [step for one in found for step in range(one.first, one.stop)] == list(model)
    for one in found:
        for step in range(one.first, one.stop):
            only = one.between(step, step + 1)
            assert only is not None
            assert (only.epoch, only.begin, only.begin + only.rows) == model[step]
    assert all(not late.goes_on(early) for early, late in pairwise(found))


def test_a_rank_that_tells_late_changes_nothing():
    early = [Steps(0, 5, 0, 0, 8, 2), Steps(5, 5, 0, 40, 8, 2)]
    assert merged([*early, Steps(0, 10, 0, 0, 8, 2), Steps(3, 2, 0, 24, 8, 2)]) == [Steps(0, 10, 0, 0, 8, 2)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), unique=True))
def test_ranges_have_the_rows_of_the_table_once(rows):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    zeros = np.zeros(len(rows), np.int64)
    table = {
        "rank": columns[0], "job": np.array(["a", "b", "c"])[columns[1]],
        "partition": zeros, "attempt": zeros, "sequence": zeros, "row": columns[2],
    }  # fmt: skip
    found = ranges(table)
    told = [
        (piece["rank"], "abc".index(piece["job"]), row)
        for piece in found
        for begin, end in piece["rows"]
        for row in range(begin, end)
    ]
    assert told == sorted(rows)
    for piece in found:
        assert all(end < begin for (_, end), (begin, _) in pairwise(piece["rows"]))


def test_who_asks_has_no_name_in_metrics(tmp_path):
    with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
        assert admin.overview()["runs"] == []
        names = [peer_name(peer) for one in spool.context.sockets for peer in one._links.state.peers.values()]
        assert names == ["127.0.0.1"]
