"""What one request may cost: rows, memory, and the time of others."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from transfer.spool import Spool
from transfer.spool.client.connection import SpoolConnection
from transfer.spool.format.order import Order
from transfer.spool.format.protocol import MAX_ROWS, MAX_TIMES, Fetch, ListRuns, Read
from transfer.spool.format.rows import Layout, cut, join, row_bytes
from transfer.spool.server.answer_queue import LARGE, AnswerQueue, whole
from transfer.spool.server.answers import Answers
from transfer.transports.core import Pool
from transfer.transports.errors import NotATensor, UsageError

from .task_sender import RAGGED, ask, commit, frame, push, write

MIXED = (
    *RAGGED,
    Layout("dense", "dense", "float32", (3,), True),
    Layout("none", "dense", "uint8", (0,)),
    Layout("long", "ragged", "int16", (2,)),
)


def mixed(first, rows, _=None):
    arrays = frame(first, rows, RAGGED)
    ids = arrays["id"]
    lengths = np.where(ids % 7 == 0, 500, ids % 3)
    arrays["dense"] = np.repeat(ids[:, None], 3, axis=1).astype(np.float32)
    arrays["dense.valid"] = ids % 3 == 0
    arrays["none"] = np.zeros((rows, 0), np.uint8)
    arrays["long"] = np.repeat(np.stack([ids, -ids], axis=1), lengths, axis=0).astype(np.int16)
    arrays["long.offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return arrays


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path) as spool:
        first, winners = 0, []
        for partition, sizes in enumerate([[40, 1, 59], [100], [7] * 10]):
            winners.append(
                push(spool.endpoint, "mixed", "job", partition, partition, first, sizes, MIXED, make=mixed)
            )
            first += sum(sizes)
        commit(spool.endpoint, "mixed", "job", winners)
        yield spool


def asked(begin, rows, stride=0, times=1, seed=None):
    return Fetch(epoch=0, seed=seed, begin=begin, rows=rows, stride=stride, times=times, need=0)


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(
    st.integers(0, 280),
    st.integers(0, 60),
    st.integers(0, 80),
    st.integers(1, 6),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([1, 3, 50, 1 << 18]),
)
def test_rows_are_the_same_however_they_are_sliced(spool, begin, rows, stride, times, seed, unit):
    entry = spool.store.entry("mixed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transfer.spool.server.answers._UNIT_ROWS", unit)
        patch.setattr("transfer.spool.server.row_copy._SCATTERED", max(1, unit // 2))
        made = Answers(spool.store, Pool()).rows(entry, asked(begin, rows, stride, times, seed), entry.seen)
        arrays, count = whole(made)
    lengths = np.diff(np.array(entry.run.visible.ends), prepend=0)
    order = Order(lengths, seed, 0, row_bytes=row_bytes(MIXED))
    wanted = []
    for number in range(times):
        low = begin + number * stride
        for frame_number, row in zip(*map(np.ndarray.tolist, order.gather(low, low + rows)), strict=True):
            wanted.append(cut(spool.store.frame(entry, frame_number), MIXED, row, row + 1))
    assert count == len(wanted)
    if not wanted:
        assert arrays == {}
        return
    expected = join(wanted, MIXED)
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        assert arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays[name], values)


def refused(spool, run, fetch):
    """Before anything is allocated for it."""
    entry = spool.store.entry(run)
    answers = Answers(spool.store, Pool())
    whole(answers.rows(entry, asked(0, 1, seed=fetch.seed), entry.seen))  # the order is made
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="a fetch of"):
            whole(answers.rows(entry, fetch, entry.seen))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", [None, 1])
def test_too_many_rows_are_refused_first(spool, seed):
    write(spool.endpoint, f"many{seed}", [[1 << 12]])
    refused(spool, f"many{seed}", asked(0, 1 << 12, 0, MAX_TIMES, seed))
    refused(spool, f"many{seed}", asked(0, 1 << 12, 0, (MAX_ROWS >> 12) + 1, seed))


@pytest.mark.parametrize("seed", [None, 1])
def test_rows_without_width_count_too(spool, seed):
    # More rows than the run has, each range cut off at its end.
    refused(spool, "mixed", replace(asked(0, 1 << 12, 0, MAX_TIMES, seed), columns=("none",)))


def test_rows_that_take_no_bytes_are_refused(spool):
    """A message of some bytes held 2^32 of them, and an order of 20 such messages took 8 s."""
    none = (Layout("none", "dense", "uint8", (0,)), Layout("nil", "dense", "int8", (3, 0)))

    def make(first, rows, _):
        return {"none": np.zeros((rows, 0), np.uint8), "nil": np.zeros((rows, 3, 0), np.int8)}

    with pytest.raises(NotATensor, match="rows of no bytes") as caught:
        push(spool.endpoint, "none", "job", 0, 0, 0, [1 << 12], none, make=make)
    assert "such as an id" in caught.value.hint


def test_a_gather_takes_little_memory_beside_its_rows(spool):
    """It took 76 bytes a row."""
    write(spool.endpoint, "wide", [[1 << 17]])
    entry = spool.store.entry("wide")
    answers, fetch = Answers(spool.store, Pool()), asked(0, 1 << 17, 0, 32, 1)  # 4 M rows, 32 MiB
    whole(answers.rows(entry, asked(0, 1, seed=1), entry.seen))
    tracemalloc.start()
    try:
        _, count = whole(answers.rows(entry, fetch, entry.seen))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1 << 22
    assert peak < 64 << 20


class Clock:
    """Each look at it takes a second."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def slices(log, name, steps, nbytes=0):
    log.append((name, "begun"))
    yield nbytes
    for step in range(steps):
        log.append((name, step))
        yield 0
    return {}, steps


def test_answers_take_turns():
    log, made = [], []
    queue = AnswerQueue(Clock())
    queue.begin(slices(log, "long", 3), made.append)
    queue.begin(slices(log, "other", 1), made.append)
    assert queue.busy
    while queue.busy:
        queue.turn()
    assert [result[1] for result in made] == [1, 3]


def test_large_answers_are_made_one_after_the_other():
    """So that memory is for one of them."""
    log, made = [], []
    stops = AnswerQueue(Clock())
    for name in ("first", "second"):
        stops.begin(slices(log, name, 2, LARGE + 1), made.append)
    stops.begin(slices(log, "small", 0), made.append)
    while stops.busy:
        stops.turn()
    assert log.index(("first", 1)) < log.index(("second", 0))
    assert [result[1] for result in made] == [0, 2, 2]


def test_an_answer_that_fails_ends_alone():
    def fails():
        yield 0
        raise UsageError("no")

    made = []
    queue = AnswerQueue()
    queue.begin(fails(), made.append)
    queue.begin(slices([], "a", 1), made.append)
    while queue.busy:
        queue.turn()
    assert isinstance(made[0], UsageError)
    assert made[1][1] == 1


def test_others_are_answered_while_a_large_answer_is_made(spool, monkeypatch):
    """An answer that never ends keeps its own reader waiting, and nobody else."""
    write(spool.endpoint, "endless", [[4]])
    real = Answers.rows
    ending = []

    def rows(self, entry, fetch, seen):
        if entry.run.name == "endless":
            while not ending:
                yield 0
        return (yield from real(self, entry, fetch, seen))

    monkeypatch.setattr(Answers, "rows", rows)
    slow, quick = SpoolConnection(spool.endpoint, 10.0), SpoolConnection(spool.endpoint, 10.0)
    try:
        slow.send(Read(run="endless", begin=0, end=1, id=1), {})
        for _ in range(10):
            quick.send(ListRuns(), {})
            assert "runs" in quick.receive(10.0)[1]
            quick.send(Read(run="mixed", begin=0, end=3), {})
            assert quick.receive(10.0)[1]["count"] == 3
        ending.append(1)
        assert slow.receive(10.0)[1]["count"] == 1
    finally:
        ending.append(1)
        slow.close()
        quick.close()


def test_reads_and_fetches_of_one_connection_are_answered_in_order(spool):
    write(spool.endpoint, "run", [[100] * 3])
    line = SpoolConnection(spool.endpoint, 10.0)
    try:
        for number in range(100):
            line.send(Read(run="run", begin=number, end=number + 150, id=number), {})
        assert [line.receive(10.0)[1]["id"] for _ in range(100)] == list(range(100))
    finally:
        line.close()


def test_a_deleted_run_s_answer_ends_with_an_error(spool, monkeypatch):
    from transfer.spool.format.protocol import DeleteRun

    write(spool.endpoint, "gone", [[3] * 50])
    entry = spool.store.entry("gone")
    made = Answers(spool.store, Pool()).rows(entry, asked(0, 150), entry.seen)
    next(made)
    next(made)
    ask(spool.endpoint, DeleteRun(run="gone"))
    with pytest.raises(Exception, match="deleted"):
        whole(made)
