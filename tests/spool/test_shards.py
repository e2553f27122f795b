"""Ranks of a group that come late, die, or are others than before, at a real spool: each gets its rows."""

from __future__ import annotations

import time
from itertools import chain, islice

import msgspec
import pytest

from transfer.spool import RowStream, Spool
from transfer.spool.format.protocol import Acknowledge, Fetch, OpenRun
from transfer.spool.server.group import (
    MAX_SHARDS,
    ReaderGroup,
    Shard,
    group_from_json,
    group_to_json,
    reached,
)
from transfer.transports.errors import LogDamaged, UsageError

from .task_sender import ask, commit, push, write

ROWS, BATCH = 120, 10


class Ranks:
    """A spool with a run of 120 rows, which can be started again, and readers of it."""

    def __init__(self, folder, kind):
        self.folder = folder
        self.spool = Spool(folder)
        self.endpoint = self.spool.endpoint
        write(self.endpoint, "run", [[7] * 10, [25, 25]], kind=kind)

    def restart(self):
        self.spool.close()
        self.spool = Spool(self.folder, self.endpoint)

    def open(self, rank, world=2, **more):
        return RowStream(
            self.spool.url("run"), BATCH, rank=rank, world_size=world, group="g", timeout=20, **more
        )

    @property
    def entry(self):
        return self.spool.store.entry("run")

    @property
    def group(self):
        return self.entry.groups["g"]

    def gone(self, shards=()):
        """Waits until only readers of these shards are there."""
        deadline = time.monotonic() + 20
        while {reader.shard for reader in self.spool._handler.readers.leases} != set(shards):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(params=["batch", "stream"])
def ranks(request, tmp_path):
    found = Ranks(tmp_path, request.param)
    yield found
    found.spool.close()


def test_an_older_checkpoint_that_is_acknowledged_late_does_not_go_behind_what_is_kept(ranks):
    """Of a stream those rows are gone; of a batch the group goes back."""
    with ranks.open(0) as one, ranks.open(1) as other:
        readers = [iter(one), iter(other)]
        for reader in readers:
            next(reader)
        older = other.state_dict()
        for reader in readers:
            next(reader)
        one.acknowledge()
        other.acknowledge(older)
    ranks.gone()
    stream = ranks.entry.run.kind == "stream"
    assert ranks.group.acknowledged == (0, ranks.entry.first if stream else 20)
    with ranks.open(0, 1) as stream_of_all:
        assert next(iter(stream_of_all))["id"][0] == ranks.group.acknowledged[1]


def take(stream, steps):
    return [int(one) for batch in islice(stream, steps) for one in batch["id"]]


def rows_of(rank, world=2, begin=0):
    """The ids of a rank's rows of all whole steps from a row on."""
    step = world * BATCH
    return [
        row
        for first in range(begin, ROWS - step + 1, step)
        for row in range(first + rank * BATCH, first + (rank + 1) * BATCH)
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_rank_gets_all_its_rows(ranks, restarted):
    with ranks.open(0) as first:
        assert take(first, 6) == rows_of(0)
        first.acknowledge()
        if restarted:
            ranks.restart()
        with ranks.open(1) as late:
            assert take(late, 6) == rows_of(1)
            late.acknowledge()
    assert ranks.group.acknowledged >= (0, ROWS)  # and then all is done with
    assert ranks.entry.first == (ROWS if ranks.entry.run.kind == "stream" else 0)


def test_rows_that_a_late_rank_needs_are_kept_and_no_others(ranks):
    with ranks.open(0) as first, ranks.open(1) as second:
        assert take(first, 4) == rows_of(0)[:40]
        assert take(second, 2) == rows_of(1)[:20]
        second.acknowledge()
        assert ranks.group.acknowledged == (0, 40)
        assert ranks.entry.first == (35 if ranks.entry.run.kind == "stream" else 0)  # a frame ends there


@pytest.mark.parametrize("how", ["closed", "lost", "lost and the spool too"])
def test_a_rank_that_comes_back_goes_on_where_it_is_done_with(ranks, how):
    """What it had used is done with if it said so; else it comes again. Nothing is left out."""
    with ranks.open(0) as first:
        second = ranks.open(1)
        assert take(second, 2) == rows_of(1)[:20]
        if how == "closed":
            second.close()
        else:
            second._source._link.disconnect()
            second._source._closed.set()
        ranks.gone([0])
        if how == "lost and the spool too":
            ranks.restart()
        assert take(first, 6) == rows_of(0)
        first.acknowledge()
        assert ranks.group.acknowledged == ((0, 40) if how == "closed" else None)
        with ranks.open(1) as back:
            left = rows_of(1, begin=40 if how == "closed" else 0)
            assert take(back, len(left) // BATCH) == left
            back.acknowledge()
        second.close()
    assert ranks.group.acknowledged >= (0, ROWS)


def test_a_rank_that_ended_before_the_last_checkpoint_is_done_with(ranks):
    with ranks.open(0) as first:
        with ranks.open(1) as second:
            assert take(second, 6) == rows_of(1)
        ranks.gone([0])
        assert take(first, 6) == rows_of(0)
        first.acknowledge()
    assert ranks.group.acknowledged >= (0, ROWS)


@pytest.mark.parametrize("restarted", [False, True])
def test_other_ranks_begin_where_all_of_those_before_were(ranks, restarted):
    with ranks.open(0) as first, ranks.open(1) as second:
        assert take(second, 1) == rows_of(1)[:10]
        second.close()
        assert take(first, 6) == rows_of(0)
        first.acknowledge()
    ranks.gone()
    if restarted:
        ranks.restart()
    found = []
    streams = [ranks.open(rank, 5) for rank in range(5)]
    for stream in streams:
        found += take(stream, 2)
    streams[3].acknowledge()
    assert sorted(found) == list(range(20, ROWS))
    for stream in streams:
        stream.close()
    assert ranks.group.acknowledged >= (0, ROWS)


def test_ranks_that_begin_again_from_a_checkpoint_are_not_taken_for_those_before(ranks):
    """What these were sent counts for nobody: the second is late this time."""
    with ranks.open(0) as first, ranks.open(1) as second:
        take(first, 1), take(second, 6)
        first.acknowledge()
        assert ranks.group.acknowledged == (0, 20)
    ranks.gone()
    with ranks.open(0) as first:
        assert take(first, 5) == rows_of(0, begin=20)
        first.acknowledge()
        with ranks.open(1) as late:
            assert take(late, 5) == rows_of(1, begin=20)


def test_a_checkpoint_goes_on_wherever_its_group_is(ranks):
    with ranks.open(0) as first:
        take(first, 3)
        state = first.state_dict()
    ranks.gone()
    with ranks.open(0) as first, ranks.open(1) as second:
        for rank, stream in enumerate((first, second)):
            stream.load_state_dict(state)
            assert take(stream, 3) == rows_of(rank, begin=60)
        first.acknowledge()
        assert ranks.group.acknowledged >= (0, ROWS)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_the_rest_of_an_epoch_is_done_with(tmp_path, drop_last, sealed):
    """Also if it was too little for a step, and readers learned of the run's end late."""
    with Spool(tmp_path) as spool:
        winner = push(spool.endpoint, "run", "job", 0, 0, 0, [47, 48], delivery="partition")
        if sealed:
            commit(spool.endpoint, "run", "job", [winner])
        streams = [
            RowStream(spool.url("run"), 10, rank=rank, world_size=3, epochs=2, drop_last=drop_last)
            for rank in range(3)
        ]
        found = [take(stream, 3) for stream in streams]
        if not sealed:
            commit(spool.endpoint, "run", "job", [winner])
        found += [take(stream, None) for stream in streams]
        left = 90 if drop_last else 95
        assert sorted(chain(*found)) == sorted([*range(left)] * 2)
        for stream in streams[1:]:
            stream.close()
        streams[0].acknowledge()
        assert spool.store.entry("run").groups["default"].acknowledged == (2, 0)
        streams[0].close()


def test_workers_of_a_loader_are_done_with_when_it_says_so(tmp_path):
    """Each is a shard; they have gone when the loader's process acknowledges. Another rank has not come."""
    pytest.importorskip("torch", reason="pip install tensor-transfer[torch]")
    from transfer.torch import StreamDataset

    ranks = Ranks(tmp_path, "batch")
    try:
        workers = [ranks.open(0, worker=worker, workers=2, lease=(worker, 4)) for worker in range(2)]
        found = [take(worker, 2) for worker in workers]
        assert sorted(chain(*found)) == rows_of(0)[:40]
        states = {str(number): worker.state_dict() for number, worker in enumerate(workers)}
        for worker in workers:
            worker.close()
        url = ranks.spool.url("run")
        dataset = StreamDataset(url, BATCH, rank=0, world_size=2, group="g")
        dataset.acknowledge(states)
        assert ranks.group.acknowledged is None
        late = StreamDataset(url, BATCH, rank=1, world_size=2, group="g")
        late.acknowledge(states)  # it has done as much
        assert ranks.group.acknowledged == (0, 80)
    finally:
        ranks.spool.close()


@pytest.mark.parametrize(
    ("visible", "over", "expected"),
    [
        (100, False, (0, 40)),
        (43, True, (1, 0)),  # fewer rows are left than there are ranks
        (44, True, (0, 40)),
        (39, True, (0, 30)),  # the last of the three steps was not whole
        (20, True, (1, 0)),
        (0, True, (1, 0)),
    ],
)
def test_what_a_shard_has_when_it_was_given_three_steps(visible, over, expected):
    steps = Fetch(epoch=0, seed=None, begin=10, rows=3, stride=10, times=3, need=40, next=(0, 40), least=4)
    assert reached(steps, visible, over=over) == expected
    assert reached(msgspec.structs.replace(steps, next=None), visible, over=over) is None


def test_a_group_is_the_same_when_it_is_found_again():
    group = ReaderGroup((0, 3))
    assert group.join(1, 3, alone=True)
    group.acknowledge((0, 8), 1, 1, 3)
    group.leave(1, None)
    assert group.acknowledged == (0, 3) and group.absent == 2
    found = group_from_json(group_to_json(group))
    assert (found.acknowledged, found.shards) == ((0, 3), 3)
    assert found.positions == {1: Shard((0, 8), (0, 8))}
    group.join(1, 3, alone=False)
    group.deliver(1, fetched(100), ROWS, over=False)
    found = group_from_json(group_to_json(group))  # its reader has to come back for what it was sent
    assert found.positions == {1: Shard((0, 8), (0, 8))}
    found.rejoin(1, 3, (0, 100))
    assert found.positions[1].delivered == (0, 100)
    with pytest.raises(LogDamaged, match="later release"):
        group_from_json(b'{"version": 4}')


def test_shards_that_are_none_are_refused(ranks):
    common = {"run": "run", "group": "g"}
    with pytest.raises(UsageError, match="at most"):
        ask(ranks.endpoint, OpenRun(**common, shard=0, shards=MAX_SHARDS + 1, token="t"))
    ask(ranks.endpoint, OpenRun(**common, shard=0, shards=2, token="t"))
    for shard, count, shards in ((1, 2, 2), (2, 1, 2), (0, MAX_SHARDS + 1, MAX_SHARDS + 1)):
        where = {"shard": shard, "count": count, "shards": shards}
        with pytest.raises(UsageError, match=r"shards \d+ to"):
            ask(ranks.endpoint, Acknowledge(**common, run_id="", **where, epoch=0, row=0, steps=[]))


def fetched(end):
    """A fetch of ten rows, up to this one."""
    return Fetch(epoch=0, seed=None, begin=end - 10, rows=10, stride=20, times=1, need=end, next=(0, end))


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_lost_reader_had_is_not_done_with_when_the_group_has_gone_back(restarted):
    """The checkpoint that another rank goes back to is older than what the lost one had acknowledged."""
    group = ReaderGroup()
    for shard in range(2):
        group.join(shard, 2, alone=not shard)
        group.deliver(shard, fetched(100), ROWS, over=False)
    group.acknowledge((0, 80), 1, 1, 2)
    if restarted:
        group = group_from_json(group_to_json(group))
    else:
        group.leave(1, None)
    group.acknowledge((0, 20), 0, 1, 2)
    assert group.acknowledged == (0, 20)
    group.acknowledge((0, 80), 0, 1, 2)
    assert group.acknowledged == (0, 20)  # where the next reader of shard 1 begins


def test_a_shard_that_acknowledges_keeps_what_it_was_sent_behind_that():
    group = ReaderGroup()
    for shard in range(2):
        group.join(shard, 2, alone=not shard)
        group.deliver(shard, fetched(100), ROWS, over=False)
    group.acknowledge((0, 40), 0, 1, 2)
    assert group.acknowledged is None or group.acknowledged <= (0, 40)
    group.acknowledge((0, 80), 1, 1, 2)  # a checkpoint of all ranks: the first one has the rows up to it
    assert group.acknowledged == (0, 80)


def test_a_shard_that_goes_back_has_not_what_it_was_sent_behind_that():
    group = ReaderGroup()
    for shard in range(2):
        group.join(shard, 2, alone=not shard)
        group.deliver(shard, fetched(100), ROWS, over=False)
    group.acknowledge((0, 60), 0, 1, 2)
    group.acknowledge((0, 40), 0, 1, 2)
    group.acknowledge((0, 80), 1, 1, 2)
    assert group.acknowledged == (0, 40)
