from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from transfer.spool import Lineage
from transfer.transports.errors import OptionError

#: rows of a step, how often, ranks; each on end, and then maybe a new epoch
STRETCHES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.booleans()), max_size=6
)


def steps_of(stretches):
    """(epoch, begin, end, ranks) of each step."""
    steps, epoch, row = [], 0, 0
    for rows, times, ranks, ends in stretches:
        for _ in range(times):
            steps.append((epoch, row, row + rows, ranks))
            row += rows
        if ends:
            epoch, row = epoch + 1, 0
    return steps


def filled(steps, first=0):
    lineage = Lineage()
    for number, step in enumerate(steps, first):
        lineage.add(number, *step)
    return lineage


@given(STRETCHES, st.integers(0, 100))
def test_each_step_knows_its_rows(stretches, first):
    steps = steps_of(stretches)
    lineage = filled(steps, first)
    for number, step in enumerate(steps, first):
        assert lineage.rows_of(number) == step[:3]
    assert len(lineage.records) <= len(stretches)
    with pytest.raises(OptionError, match=f"step {first + len(steps)} is not in the lineage"):
        lineage.rows_of(first + len(steps))


@given(STRETCHES, st.integers(0, 20), st.integers(0, 20))
def test_parts_of_it_are_those_steps(stretches, low, high):
    steps = steps_of(stretches)
    part = Lineage(filled(steps).between(low, high))
    assert sum(record[1] for record in part.records) == len(steps[low:high])
    for number in range(low, min(high, len(steps))):
        assert part.rows_of(number) == steps[number][:3]


@given(STRETCHES, st.integers(0, 3), st.integers(0, 50))
def test_since_a_position_are_the_steps_that_end_behind_it(stretches, epoch, row):
    steps = steps_of(stretches)
    part = Lineage(filled(steps).since(epoch, row))
    expected = {n: step[:3] for n, step in enumerate(steps) if (step[0], step[2]) > (epoch, row)}
    assert sum(record[1] for record in part.records) == len(expected)
    assert all(part.rows_of(n) == rows for n, rows in expected.items())


def test_a_step_that_is_done_again_is_told_anew():
    lineage = filled([(0, 10 * n, 10 * n + 10, 1) for n in range(5)])
    lineage.add(3, 0, 30, 35, 1)
    assert lineage.records == [[0, 3, 0, 0, 10, 1], [3, 1, 0, 30, 5, 1]]
