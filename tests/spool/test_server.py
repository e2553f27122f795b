"""A spool with real sockets: leases, fetches, strangers, slow readers, and its end."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager, suppress

import msgspec
import numpy as np
import pytest

import transfer
from tests.core.raw_frames import Raw
from tests.faults.raw_peer import is_closed, raw_peer, send_frames
from transfer.spool import Spool
from transfer.spool.client.connection import SpoolConnection
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.order import Order
from transfer.spool.format.protocol import (
    MAX_REQUEST,
    AbortJob,
    Acknowledge,
    CommitJob,
    Declare,
    DeleteRun,
    Ended,
    Explain,
    Fetch,
    InspectRun,
    ListRuns,
    OpenRun,
    Read,
    to_meta as asked,
)
from transfer.spool.format.row_source import FAILED, OPEN, SEALED
from transfer.spool.format.rows import to_json
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd, checksum, to_meta
from transfer.spool.server.answers import Answers
from transfer.spool.server.attempt_ends import AttemptEnds
from transfer.spool.server.store import SpoolStore
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import (
    Again,
    Broken,
    Closed,
    InternalError,
    LogFull,
    NotATensor,
    OptionError,
    ProtocolError,
    UsageError,
)

from .processes import SpoolProcess, reader
from .task_sender import RAGGED, SMALL, WIDE, agrees, ask, commit, frame, push, write


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        yield spool


@contextmanager
def opened(spool, run="run", group="group", shard=0, shards=1, timeout=10.0):
    client = RunClient(spool.url(run), timeout=timeout)
    try:
        client.open(group, shard, shards)
        yield client
    finally:
        client.close()


def fetch(begin, rows, *, times=1, stride=0, need=None, epoch=0, seed=None):
    end = begin + (times - 1) * stride + rows
    return Fetch(
        epoch=epoch,
        seed=seed,
        begin=begin,
        rows=rows,
        stride=stride,
        times=times,
        need=end if need is None else need,
    )


def collect(client, request, layouts=SMALL, timeout=10.0):
    client.request(request)
    rows = client.collect(timeout)
    found = agrees(rows.arrays, layouts) if rows.count else []
    assert len(found) == rows.count
    return found


# -- leases ----------------------------------------------------------------------------------------------


def lease(line, token, group="group", shard=0, shards=1, run="run"):
    line.send(OpenRun(run=run, group=group, shard=shard, shards=shards, token=token), {})
    return line.receive(10.0)[1]


@pytest.fixture
def lines(spool):
    """Makes connections."""
    made = []

    def make():
        made.append(SpoolConnection(spool.endpoint, 10.0))
        return made[-1]

    yield make
    for line in made:
        line.close()


def test_a_shard_has_one_reader(spool, lines):
    write(spool.endpoint, "run", [[4]])
    one, two, three, four = (lines() for _ in range(4))
    assert lease(one, "a", shards=2)["visible"] == 4
    assert "busy" in lease(two, "b", shards=2)
    assert "busy" in lease(two, "b", shards=1)  # shards must be of one number
    assert "busy" in lease(two, "b", shard=2, shards=3)
    assert "busy" not in lease(two, "b", shard=1, shards=2)
    assert "busy" not in lease(three, "c", group="other")
    assert "busy" not in lease(one, "a", shards=2)  # again on the same connection
    assert "busy" not in lease(four, "a", shards=2)  # it came back before its old connection's end was seen
    one.send(fetch(0, 1), {})
    assert one.receive(10.0)[1]["error"][0] == "Broken"  # whose lease is gone
    four.send(fetch(0, 4), {})
    assert agrees(four.receive(10.0)[0]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("shard", "shards"), [(1, 1), (7, 2)])
def test_a_shard_that_is_none_is_refused(spool, lines, shard, shards):
    write(spool.endpoint, "run", [[4]])
    assert lease(lines(), "a", shard=shard, shards=shards)["error"][0] == "UsageError"


def test_a_second_reader_is_told_whose_lease_it_is(spool, monkeypatch):
    monkeypatch.setattr("transfer.spool.client.run_client._LEASE_PATIENCE", 0.1)
    write(spool.endpoint, "run", [[4]])
    with opened(spool):
        second = RunClient(spool.url("run"), timeout=10.0)
        with pytest.raises(UsageError, match="shard 0 of 1"):
            second.open("group")
        second.close()
    with opened(spool) as third:
        assert collect(third, fetch(0, 4)) == [0, 1, 2, 3]


def test_a_killed_reader_has_no_lease(spool):
    write(spool.endpoint, "run", [[4]])
    with reader(spool.url("run")) as process:
        assert process.line == "4"
        process.kill()
        with opened(spool) as client:
            assert collect(client, fetch(0, 4)) == [0, 1, 2, 3]


def test_a_run_that_never_comes(spool):
    client = RunClient(spool.url("nothing"), timeout=0.3)
    with pytest.raises(OptionError, match="nothing"):
        client.open("group")
    client.close()


# -- fetches ---------------------------------------------------------------------------------------------


def test_a_fetch_waits_until_its_rows_are_visible(spool):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="partition", kind="batch"))
    with opened(spool) as client:
        client.request(fetch(0, 4))
        client.request(fetch(4, 4))
        client.request(fetch(8, 4))
        with pytest.raises(Again):
            client.collect(0.01)
        winners = [push(spool.endpoint, "run", "job", 0, 0, 0, [3, 3], delivery="partition")]
        assert agrees(client.collect(10.0).arrays) == [0, 1, 2, 3]
        with pytest.raises(Again):
            client.collect(0.01)
        winners.append(push(spool.endpoint, "run", "job", 1, 1, 6, [3], delivery="partition"))
        assert agrees(client.collect(10.0).arrays) == [4, 5, 6, 7]
        with pytest.raises(Again):
            client.collect(0.01)
        commit(spool.endpoint, "run", "job", winners)  # nothing more will come
        rows = client.collect(10.0)
        assert (agrees(rows.arrays), rows.visible, rows.state) == ([8], 9, SEALED)


def test_less_is_needed_than_is_asked_for(spool):
    """An open run gives what it has, when it has what is needed."""
    ask(spool.endpoint, Declare(run="run", job="job", delivery="partition", kind="batch"))
    with opened(spool) as client:
        client.request(fetch(0, 100, need=2))
        push(spool.endpoint, "run", "job", 0, 0, 0, [3], delivery="partition")
        rows = client.collect(10.0)
        assert (agrees(rows.arrays), rows.state) == ([0, 1, 2], OPEN)


def test_an_answer_is_of_one_moment(spool, monkeypatch):
    """While it is made, more rows become visible, and the run complete: it does not say so of itself."""
    ask(spool.endpoint, Declare(run="run", job="job", delivery="partition", kind="batch"))
    winners = [push(spool.endpoint, "run", "job", 0, 0, 0, [3], delivery="partition")]
    make = Answers.rows

    def make_late(self, *arguments):
        made = yield from make(self, *arguments)
        monkeypatch.undo()
        sequence, _ = spool.store.commit("run", "job", winners)
        spool.store.log.commit(sequence)
        spool.store.kept(sequence)
        return made

    monkeypatch.setattr(Answers, "rows", make_late)
    with opened(spool) as client:
        client.request(fetch(0, 100, need=2))
        rows = client.collect(10.0)
        assert (rows.count, rows.visible, rows.state) == (3, 3, OPEN)
        client.request(fetch(3, 100))
        assert client.collect(10.0).state == SEALED


def test_a_failed_run_tells_so(spool):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="partition", kind="batch"))
    push(spool.endpoint, "run", "job", 0, 0, 0, [3], delivery="partition")
    with opened(spool) as client:
        client.request(fetch(0, 8))
        client.request(fetch(8, 8))
        ask(spool.endpoint, AbortJob(run="run", job="job"))
        rows = client.collect(10.0)
        assert (agrees(rows.arrays), rows.state) == ([0, 1, 2], FAILED)
        rows = client.collect(10.0)
        assert (rows.arrays, rows.count, rows.state) == ({}, 0, FAILED)
        with pytest.raises(UsageError):
            collect(client, fetch(0, 1, seed=3))  # not all rows are there


def test_a_run_that_is_deleted_while_it_is_read(spool):
    write(spool.endpoint, "run", [[4]])
    with opened(spool) as client:
        with pytest.raises(UsageError, match="1 readers"):
            ask(spool.endpoint, DeleteRun(run="run"))
        assert ask(spool.endpoint, DeleteRun(run="run", force=True))[1]["rows"] == 4
        with pytest.raises(Broken, match="deleted"):
            collect(client, fetch(0, 4))
        write(spool.endpoint, "run", [[5]])  # another run
        with pytest.raises(Broken, match="deleted"):
            collect(client, fetch(0, 4))
        with pytest.raises(Broken, match="was deleted: run is"):
            client.acknowledge(0, 4, [])
    with opened(spool) as client:  # and what the old reader's end told did no harm
        assert collect(client, fetch(0, 5)) == [0, 1, 2, 3, 4]
        client.acknowledge(0, 5, [])


def test_a_fetch_that_waits_when_its_run_is_deleted(spool):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    with opened(spool) as client:
        client.request(fetch(0, 4))
        ask(spool.endpoint, DeleteRun(run="run", force=True))
        with pytest.raises(Broken, match="deleted"):
            client.collect(10.0)


def test_a_run_that_is_deleted_while_it_is_written_does_not_come_back(spool):
    winner = push(spool.endpoint, "run", "job", 0, 0, 0, [4], delivery="partition")
    ask(spool.endpoint, DeleteRun(run="run", force=True))
    task = Declare(run="run", job="job", delivery="partition", kind="batch", task=True)
    with pytest.raises(Broken, match="was deleted while this job wrote to it"):
        ask(spool.endpoint, task)  # its next task
    with pytest.raises(Broken, match="was deleted while this job wrote to it"):
        commit(spool.endpoint, "run", "job", [winner])
    assert "run" not in spool.store.entries
    winner = push(spool.endpoint, "run", "another", 0, 0, 0, [5])
    assert commit(spool.endpoint, "run", "another", [winner])["rows"] == 5


def test_rows_that_are_not_there_cannot_be_acknowledged(spool):
    """A stream's rows that came later counted as read."""
    winner = push(spool.endpoint, "run", "job", 0, 0, 0, [4], kind="stream")
    commit(spool.endpoint, "run", "job", [winner])
    with opened(spool) as client:
        with pytest.raises(UsageError, match="row 5 of run run, which has 4 rows"):
            client.acknowledge(0, 5, [])
        client.acknowledge(0, 4, [])


@pytest.mark.parametrize("layouts", [SMALL, RAGGED, WIDE], ids=["small", "ragged", "wide"])
def test_ranges_and_orders(spool, layouts):
    """Strides over frames and partitions; shuffles are those of `order.py`."""
    sizes = [[5, 0, 9], [], [1, 1], [20]]
    total = write(spool.endpoint, "run", sizes, layouts)["rows"]
    lengths = [5, 9, 1, 1, 20]
    assert total == 36
    row_bytes = {SMALL: 8, RAGGED: 8 + 64 + 64, WIDE: 8200}[layouts]
    with opened(spool) as client:
        for seed, epoch in ((None, 0), (None, 3), (5, 0), (5, 1), (-1, 1)):
            frames, rows = Order(lengths, seed, epoch, row_bytes=row_bytes).gather(0, total)
            order = (np.cumsum([0, *lengths])[frames] + rows).tolist()
            assert sorted(order) == list(range(total))
            for begin, count, times, stride in (
                (0, 36, 1, 0),
                (0, 99, 1, 0),
                (3, 1, 9, 4),
                (2, 4, 5, 8),
                (0, 2, 3, 1),  # they overlap
                (7, 3, 2, 0),  # the same twice
                (35, 5, 1, 0),
                (36, 5, 1, 0),
                (0, 0, 5, 7),
                ((1 << 63) - 1, (1 << 63) - 1, 1 << 16, (1 << 63) - 1),
            ):
                wanted = []
                for one in range(times):
                    if begin + one * stride >= total:
                        break
                    wanted += order[begin + one * stride : begin + one * stride + count]
                asking = fetch(begin, count, times=times, stride=stride, seed=seed, epoch=epoch, need=0)
                assert collect(client, asking, layouts) == wanted


def test_large_answers(spool, monkeypatch):
    write(spool.endpoint, "run", [[512] * 4, [512] * 4], WIDE)  # 32 MiB
    with opened(spool) as client:
        for seed in (None, 1):
            client.request(fetch(0, 4096, seed=seed))
            client.request(fetch(0, 4096, seed=seed))
            for _ in range(2):
                rows = client.collect(20.0)
                ids = rows.arrays["id"]
                assert sorted(ids.tolist()) == list(range(4096))
                assert (rows.arrays["wide"] == (ids % 251).astype(np.uint8)[:, None]).all()
                rows.arrays["wide"][:] = 0  # writable
    monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", 1 << 20)
    with pytest.raises(UsageError, match="4,096 rows"):
        ask(spool.endpoint, Read(run="run", begin=0, end=4096))


@pytest.mark.parametrize("seed", [None, 1])
def test_ragged_rows_that_are_larger_than_guessed(spool, monkeypatch, seed):
    write(spool.endpoint, "run", [[1000]], RAGGED)
    monkeypatch.setattr("transfer.spool.format.rows._GUESS", 0)
    monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", 14_000)
    with opened(spool) as client:
        assert len(collect(client, fetch(0, 900, seed=seed), RAGGED)) == 900
        assert len(collect(client, fetch(0, 300, seed=seed), RAGGED)) == 300


# -- writers ---------------------------------------------------------------------------------------------


def test_a_commit_that_is_asked_again_is_answered_the_same(spool):
    winners = [push(spool.endpoint, "run", "job", 0, 0, 0, [4])]
    assert commit(spool.endpoint, "run", "job", winners)["rows"] == 4
    again = commit(spool.endpoint, "run", "job", winners)
    assert (again["rows"], again["done"]) == (4, True)
    with pytest.raises(UsageError, match="is a batch"):
        push(spool.endpoint, "run", "job", 0, 0, 0, [4], kind="stream")


def test_an_attempt_that_never_came_is_told_so_once(spool, monkeypatch):
    monkeypatch.setattr("transfer.spool.server.attempt_ends._MISSING", 0.05)
    write(spool.endpoint, "run", [[4]])
    with pytest.raises(Broken, match="partition 3"):
        ask(spool.endpoint, Ended(run="run", job="job", partition=3, attempt=3))


def test_an_end_that_came_for_nobody_is_told_at_once(spool, monkeypatch):
    """As when the spool was restarted in the middle of an attempt."""
    monkeypatch.setattr("transfer.spool.server.attempt_ends._MISSING", 1000.0)
    port = ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))[1]["port"]
    with pushing(port) as socket:
        socket.send_tensors({}, meta=to_meta(TaskEnd("run", "job", 3, 3, 1, 4, 5)))
        with pytest.raises(Broken, match="partition 3"):
            ask(spool.endpoint, Ended(run="run", job="job", partition=3, attempt=3))
    winner = push(spool.endpoint, "run", "job", 3, 3, 0, [4])  # it is no reason to refuse one that is whole
    assert commit(spool.endpoint, "run", "job", [winner])["rows"] == 4


def test_a_job_that_comes_again_after_its_abort(spool):
    """With attempts of the same numbers, of which another end was known."""
    push(spool.endpoint, "run", "job", 0, 0, 0, [4])
    ask(spool.endpoint, AbortJob(run="run", job="job"))
    with opened(spool) as client:
        client.request(fetch(0, 1))
        assert client.collect(10.0).state == FAILED
    winner = push(spool.endpoint, "run", "job", 0, 0, 10, [2, 2])
    assert commit(spool.endpoint, "run", "job", [winner])["rows"] == 4
    with opened(spool) as client:
        assert collect(client, fetch(0, 4)) == [10, 11, 12, 13]


def test_a_task_that_comes_late_does_not_open_an_aborted_run_again(spool):
    declared = {"run": "run", "job": "job", "delivery": "committed", "kind": "batch"}
    ask(spool.endpoint, Declare(**declared))
    ask(spool.endpoint, AbortJob(run="run", job="job"))
    with pytest.raises(Broken, match="was aborted"):
        ask(spool.endpoint, Declare(**declared, task=True))
    (run,) = ask(spool.endpoint, ListRuns())[1]["runs"]
    assert run["state"] == FAILED
    ask(spool.endpoint, Declare(**declared))  # the same job again, as its driver says
    ask(spool.endpoint, Declare(**declared, task=True))
    winner = push(spool.endpoint, "run", "job", 0, 0, 10, [2])
    assert commit(spool.endpoint, "run", "job", [winner])["rows"] == 2


def test_rows_that_cannot_be_kept_fail_their_attempt_and_no_other(spool):
    push(spool.endpoint, "run", "job", 0, 0, 0, [4])
    with pytest.raises(NotATensor, match="columns"):
        push(spool.endpoint, "run", "job", 1, 1, 4, [4], RAGGED)
    winners = [
        push(spool.endpoint, "run", "job", 0, 2, 0, [4]),
        push(spool.endpoint, "run", "job", 1, 3, 4, [4]),
    ]
    assert commit(spool.endpoint, "run", "job", winners)["rows"] == 8


def test_an_end_that_is_being_written_is_waited_for(spool, monkeypatch):
    """A slow disk is no reason to send the attempt again."""
    monkeypatch.setattr("transfer.spool.server.attempt_ends._MISSING", 0.0)
    looked, receive = threading.Event(), SpoolStore.receive
    look = AttemptEnds.refuse_missing

    def receive_late(self, message, arrays):
        if isinstance(message, TaskEnd):
            looked.clear()
            assert looked.wait(20.0)
        return receive(self, message, arrays)

    def look_and_tell(self):
        asked = bool(self._asking)
        look(self)
        if asked:
            looked.set()

    monkeypatch.setattr(SpoolStore, "receive", receive_late)
    monkeypatch.setattr(AttemptEnds, "refuse_missing", look_and_tell)
    assert push(spool.endpoint, "run", "job", 0, 0, 0, [4]).rows == 4


@pytest.mark.parametrize("change", ["bytes", "crc", "rows", "sequence", "columns", "dtype", "end"])
def test_an_attempt_whose_messages_do_not_agree(spool, change):
    port = ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))[1]["port"]
    key = ("run", "job", 0, 0)
    arrays = frame(0, 4)
    crc = checksum(arrays)
    if change == "bytes":
        arrays["id"] = arrays["id"] + 1
    elif change == "columns":
        arrays = frame(0, 4, RAGGED)
        crc = checksum(arrays)
    elif change == "dtype":
        arrays = {"id": frame(0, 4)["id"].astype(np.float64)}
        crc = checksum(arrays)
    rows = RowsFrame(*key, int(change == "sequence"), 4 + (change == "rows"), crc + (change == "crc"))
    with pushing(port) as socket:
        socket.send_tensors({}, meta=to_meta(TaskBegin(*key, 0, json.dumps(to_json(SMALL)))))
        socket.send_tensors(arrays, meta=to_meta(rows))
        socket.send_tensors({}, meta=to_meta(TaskEnd(*key, 1, 4, 5)), track=True).wait_confirmed(10.0)
        with pytest.raises(ProtocolError):
            ask(spool.endpoint, Ended(run="run", job="job", partition=0, attempt=0))
    write(spool.endpoint, "other", [[3]])


@contextmanager
def pushing(port):
    context = transfer.Context()
    try:
        socket = context.socket(transfer.PUSH)
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket
    finally:
        context.destroy(1000)


def test_a_full_spool_lets_writers_wait(tmp_path):
    """Rows, their ends and the commit: all of them wait until there is room."""
    with Spool(tmp_path) as spool:
        append, full = spool.store.log.append, threading.Event()
        waits = threading.Event()

        def limited(*arguments, **options):
            if full.is_set():
                waits.set()
                raise LogFull("the disk is full")
            return append(*arguments, **options)

        spool.store.log.append = limited
        winners = []
        writer = threading.Thread(
            target=lambda: winners.append(push(spool.endpoint, "run", "job", 0, 0, 0, [4, 4])), daemon=True
        )
        full.set()
        writer.start()
        assert waits.wait(10.0)
        assert "transfer runs delete" in ask(spool.endpoint, ListRuns())[1]["full"]
        full.clear()
        writer.join()
        full.set()
        waits.clear()
        driver = threading.Thread(
            target=lambda: winners.append(commit(spool.endpoint, "run", "job", winners[:1]))
        )
        driver.start()
        assert waits.wait(10.0)
        assert "transfer runs delete" in ask(spool.endpoint, ListRuns())[1]["full"]
        full.clear()
        driver.join()
        assert winners[1] == {"id": 1, "rows": 8, "done": False}


# -- strangers -------------------------------------------------------------------------------------------

HUGE = 10**30
BAD_REQUESTS = [
    None,
    3,
    "text",
    [],
    {},
    {"id": 1},
    {"ask": None, "id": 1},
    {"ask": "nothing", "id": 1},
    {"ask": ["fetch"], "id": 1},
    {"ask": "list", "id": "text"},
    {"ask": "list", "id": -1},
    {"ask": "list", "id": HUGE},
    {"ask": "list", "id": [[[[]]]]},
    {"ask": "list", "more": 1},
    {"ask": "inspect"},
    {"ask": "inspect", "run": ""},
    {"ask": "inspect", "run": "x" * 300},
    {"ask": "inspect", "run": "nothing"},
    {"ask": "inspect", "run": 3},
    {"ask": "delete", "run": "nothing"},
    {"ask": "delete", "run": "run", "force": 1},
    {"ask": "declare", "run": "a", "job": "b", "delivery": "eager", "kind": "batch"},
    {"ask": "declare", "run": "run", "job": "b", "delivery": "committed", "kind": "stream"},
    {"ask": "open", "run": "run", "group": "g", "shard": 0, "shards": 0, "token": "t"},
    {"ask": "open", "run": "run", "group": "g", "shard": HUGE, "shards": HUGE, "token": "t"},
    {
        "ask": "fetch",
        **dict.fromkeys(("epoch", "begin", "rows", "stride", "need"), 0),
        "seed": None,
        "times": 1,
    },
    {"ask": "fetch", "times": 1 << 20},
    {"ask": "read", "run": "nothing", "begin": 0, "end": 0},
    {"ask": "acknowledge", "run": "run", "group": "never", "epoch": 0, "row": 0, "steps": []},
    {"ask": "acknowledge", "run": "run", "group": "g", "epoch": 0, "row": 0, "steps": [["x"]]},
    {"ask": "commit", "run": "nothing", "job": "j"},
    {"ask": "commit", "run": "open", "job": "j"},
    {"ask": "explain", "run": "run", "epoch": 0, "seed": None, "begin": 0, "end": 1 << 62},
    {"ask": "explain", "run": "open", "epoch": 0, "seed": 3, "begin": 0, "end": 1},
    {"ask": "lineage", "run": "nothing", "group": "g"},
]


def test_requests_that_are_none_are_refused(spool, lines):
    write(spool.endpoint, "run", [[4]])
    ask(spool.endpoint, Declare(run="open", job="other", delivery="committed", kind="batch"))
    line = lines()
    for meta in BAD_REQUESTS:
        line._socket.send_tensors({}, meta=meta)
        _, answer = line.receive(10.0)
        assert answer["error"][0] not in ("InternalError", "AssertionError"), meta
    assert lease(line, "a")["visible"] == 4


@pytest.mark.parametrize(
    "table",
    [
        {"partition": np.zeros((), np.int64)},
        {"partition": np.zeros((1, 1), np.int64)},
        {"partition": np.zeros(1)},
        {"partition": np.zeros(2, np.int64)},
        {"partition": np.full(1, -1)},
        {"partition": None},
        {"more": np.zeros(1, np.int64)},
        {
            name: np.zeros((), np.int64)
            for name in ("partition", "attempt", "frames", "rows", "nbytes", "crc")
        },
    ],
    ids=str,
)
def test_a_commits_table_that_is_none_is_refused(spool, table):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    whole = {
        name: np.zeros(1, np.int64) for name in ("partition", "attempt", "frames", "rows", "nbytes", "crc")
    }
    whole = {name: column for name, column in {**whole, **table}.items() if column is not None}
    with pytest.raises(ProtocolError):
        ask(spool.endpoint, CommitJob(run="run", job="job"), whole)


def test_messages_that_are_none_do_no_harm(spool, lines, caplog):
    """Bytes, several parts, single tensors and wrong rows, on both sockets."""
    endpoint = spool.endpoint
    port = ask(endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))[1]["port"]
    line = lines()
    columns = json.dumps(to_json(SMALL))
    begin = to_meta(TaskBegin("run", "job", 7, 7, 0, columns))
    with pushing(port) as push_socket:
        for socket in (line._socket, push_socket):
            socket.send(b"hello")
            socket.send_multipart([b"", b"a", b"b"])
            socket.send_tensor(np.arange(3))
            socket.send_tensors({"a": np.zeros(3)})
            socket.send_tensors({"a": np.zeros(3)}, meta="text")
            socket.send_tensors({}, meta=begin | {"kind": "nothing"})
            socket.send_tensors({}, meta=begin | {"partition": HUGE})
            socket.send_tensors({}, meta=begin | {"partition": "x"})
            socket.send_tensors({}, meta=begin | {"run": None})
        for columns in ("[" * 100_000, "nonsense", "{}", "[1]", json.dumps(to_json(SMALL) * 2), "1" * 10_000):
            push_socket.send_tensors({}, meta=begin | {"columns": columns})
        for dtype in ("object", "nonsense", "U0"):
            described = [{**to_json(SMALL)[0], "dtype": dtype}]
            push_socket.send_tensors({}, meta=begin | {"columns": json.dumps(described)})
        # Columns of nothing, of which there are very many.
        described = [{**to_json(SMALL)[0], "shape": [0]}]
        push_socket.send_tensors({}, meta=begin | {"columns": json.dumps(described)})
        for sequence in range(3):
            arrays = {"id": np.empty((1 << 56, 0), np.int64)}
            meta = to_meta(RowsFrame("run", "job", 7, 7, sequence, 1 << 56, checksum(arrays)))
            with suppress(NotATensor):
                push_socket.send_tensors(arrays, meta=meta)
            push_socket.send_tensors({}, meta=meta)
        push_socket.send_tensors(
            {}, meta=to_meta(TaskEnd("run", "job", 7, 7, 0, 0, 0)), track=True
        ).wait_confirmed(10.0)
        winner = push(endpoint, "run", "job", 0, 0, 0, [4])
    assert commit(endpoint, "run", "job", [winner])["rows"] == 4
    with opened(spool) as client:
        assert collect(client, fetch(0, 4)) == [0, 1, 2, 3]


def test_what_nobody_thought_of_ends_one_request_only(spool, monkeypatch, caplog):
    write(spool.endpoint, "run", [[4]])

    def fails(*_):
        raise ZeroDivisionError("nobody thought of it")

    with monkeypatch.context() as context:
        context.setattr("transfer.spool.server.request_handler.summary", fails)
        with pytest.raises(InternalError, match="nobody thought"):
            ask(spool.endpoint, ListRuns())
        context.setattr("transfer.spool.server.answers.cut", fails)
        with opened(spool) as client, pytest.raises(InternalError, match="nobody thought"):
            collect(client, fetch(0, 4))
        context.setattr("transfer.spool.format.rows.check", fails)
        with pytest.raises(InternalError, match="nobody thought"):
            push(spool.endpoint, "other", "job", 0, 0, 0, [4])
        ticked = threading.Event()
        context.setattr(AttemptEnds, "refuse_missing", lambda self: (ticked.set(), fails()))
        assert ticked.wait(10.0)
    with opened(spool) as client:
        assert collect(client, fetch(0, 4)) == [0, 1, 2, 3]
    assert push(spool.endpoint, "other", "job", 0, 1, 0, [4]).rows == 4
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) >= 4
    assert all(record.exc_info for record in told)
    told.clear()
    caplog.clear()  # tracebacks keep what they saw
    assert spool.failure is None


def test_a_log_that_fails_ends_the_spool_visibly(spool, monkeypatch):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    with opened(spool, timeout=1.0) as client:
        client.request(fetch(0, 4))

        def fails(*_):
            raise OSError(5, "the disk is broken")

        monkeypatch.setattr("transfer.log.segment.os.fdatasync", fails)
        monkeypatch.setattr("transfer.spool.client.connection._PAUSE", 0.1)
        with pytest.raises(Again):  # nobody is told that anything was kept
            push(spool.endpoint, "other", "job", 0, 0, 0, [4], timeout=1.0)
        assert isinstance(spool.failure, InternalError)
        monkeypatch.undo()
        with suppress(Again, Broken):
            client.collect(0.1)
        with pytest.raises((Again, Broken)):
            client.collect(5.0)


# -- slow readers, and the end ---------------------------------------------------------------------------


def test_a_slow_reader_stops_nobody_and_takes_no_memory(tmp_path):
    """It asks for a gigabyte and takes nothing; others read and write meanwhile."""
    process = SpoolProcess(tmp_path / "spool")
    line = None
    try:
        write(process.endpoint, "run", [[512] * 8], WIDE)  # 32 MiB
        line = SpoolConnection(process.endpoint, 10.0)
        lease(line, "slow", "slow")
        line._socket.rcvhwm = 1
        before = process.memory()
        for number in range(100):
            request = fetch(0, 1024, seed=number, need=0)  # 8 MiB each
            line.send(msgspec.structs.replace(request, id=number + 1), {})
        client = RunClient(f"run://{process.endpoint.removeprefix('tcp://')}/run", timeout=20.0)
        client.open("group")
        for number in range(4):
            assert collect(client, fetch(1000 * number, 1), WIDE) == [1000 * number]
            write(process.endpoint, f"other{number}", [[8]])
        assert process.memory() - before < 400 << 20  # shared memory alone may be 256 MiB
        for number in range(100):  # it goes on, and has all of it
            arrays, meta = line.receive(20.0)
            while meta["id"] == 0:
                arrays, meta = line.receive(20.0)
            assert (meta["id"], meta["count"]) == (number + 1, 1024)
            assert (arrays["wide"][:, 0] == arrays["id"] % 251).all()
        client.close()
    finally:
        if line is not None:
            line.close()
        process.kill()


def test_a_request_that_is_too_large_ends_its_connection(spool):
    with raw_peer(spool.endpoint, SocketType.DEALER) as peer:
        send_frames(peer, Raw(b"", length=MAX_REQUEST + 1, socket_type=int(SocketType.DEALER)))
        assert is_closed(peer)


def test_too_many_fetches_are_refused(spool, lines, monkeypatch):
    monkeypatch.setattr("transfer.spool.server.row_requests._MAX_WAITING", 3)
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    line = lines()
    lease(line, "a")
    for _ in range(4):
        line.send(fetch(0, 1), {})
    assert line.receive(10.0)[1]["error"][0] == "UsageError"


@pytest.mark.parametrize("clients", [0, 3])
def test_a_spool_that_is_closed_while_readers_wait(tmp_path, clients):
    spool = Spool(tmp_path)
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    readers = [RunClient(spool.url("run"), timeout=0.5) for _ in range(clients)]
    for number, client in enumerate(readers):
        client.open(f"group{number}")
        client.request(fetch(0, 4))
    spool.close()
    spool.close()
    for client in readers:
        with pytest.raises((Again, Broken)):
            client.collect(None)
        client.close()
        client.close()
        with pytest.raises(Closed):
            client.collect(None)


def test_a_reader_that_waits_for_its_run_logs_it_once(spool, monkeypatch, caplog):
    monkeypatch.setattr("transfer.spool.client.run_client._SILENCE", 0.3)
    client = RunClient(spool.url("misspelt"), timeout=1.0)
    with pytest.raises(OptionError, match="there is no run 'misspelt'") as caught:
        client.open("group")
    client.close()
    (line,) = [text for text in caplog.messages if "waits for the run" in text]
    command = f"`transfer runs list {spool.endpoint.removeprefix('tcp://')}`"
    assert "'misspelt'" in line and command in line and command in caught.value.hint


def test_a_reader_that_is_closed_while_it_waits(spool):
    ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
    client = RunClient(spool.url("run"), timeout=10.0)
    client.open("group")
    client.request(fetch(0, 4))
    found = []
    began = threading.Event()

    def wait():
        began.set()
        try:
            client.collect(None)
        except Closed as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    client.close()
    thread.join()
    assert found


def test_positions_and_lineage_are_kept(tmp_path):
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[8]])
        with opened(spool) as client:
            collect(client, fetch(0, 6))
            client.acknowledge(0, 4, [[0, 1, 0, 0, 4, 1]])
        with opened(spool, group="never"):
            pass
    with Spool(tmp_path) as spool:
        client = RunClient(spool.url("run"), timeout=10.0)
        info = client.open("group")
        assert (info.acknowledged, info.visible, info.state, info.layouts) == ((0, 4), 8, SEALED, SMALL)
        assert info.delivered >= (0, 4)
        client.close()
        told = ask(spool.endpoint, InspectRun(run="run"))[1]
        assert set(told["groups"]) == {"group", "never"}
        asked_for = Explain(run="run", epoch=0, seed=None, begin=0, end=8)
        assert ask(spool.endpoint, asked_for)[0]["row"].tolist() == list(range(8))
        with pytest.raises(UsageError):
            ask(
                spool.endpoint,
                Acknowledge(
                    run="run", run_id=info.run_id, group="other", shard=0, shards=1, epoch=0, row=0, steps=[]
                ),
            )
        assert asked(asked_for)["ask"] == "explain"


def test_a_job_that_one_task_refused_is_refused_by_its_type_to_the_others(spool):
    cause = ["NotATensor", "column 'x' has 1 null value(s)", "fill them"]
    push(spool.endpoint, "run", "job", 0, 0, 0, [4])
    ask(spool.endpoint, AbortJob(run="run", job="job", cause=cause))
    ask(spool.endpoint, AbortJob(run="run", job="job"))  # the driver's, later
    declare = {"run": "run", "delivery": "committed", "kind": "batch"}
    with pytest.raises(NotATensor, match=r"^column 'x' has 1 null value\(s\)\n  hint: fill them$"):
        ask(spool.endpoint, Declare(job="job", task=True, **declare))
    assert not ask(spool.endpoint, Declare(job="another", task=True, **declare))[1]["done"]


def test_an_empty_name_is_no_folder():
    with pytest.raises(transfer.UsageError, match="folder"):
        Spool("")
