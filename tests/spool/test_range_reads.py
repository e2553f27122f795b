"""Rows that are read without a lease, as Spark's tasks read them."""

from __future__ import annotations

import threading

import pytest

from transfer.spool import Spool
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Acknowledge, DeleteRun, Ended, Fetch, InspectRun, Read
from transfer.spool.format.row_source import OPEN, SEALED
from transfer.transports.errors import Broken, OptionError, UsageError

from .task_sender import RAGGED, SMALL, agrees, ask, commit, push, write


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        yield spool


def read(spool, begin, end, layouts=SMALL, run="run"):
    """(the ids of these rows, the reply that came with them)"""
    arrays, reply = ask(spool.endpoint, Read(run=run, begin=begin, end=end))
    found = agrees(arrays, layouts) if reply["count"] else []
    assert len(found) == reply["count"]
    return found, reply


@pytest.mark.parametrize("layouts", [SMALL, RAGGED], ids=["small", "ragged"])
def test_any_range_is_there_in_visible_order(spool, layouts):
    write(spool.endpoint, "run", [[3, 1, 4], [1, 5]], layouts)
    for begin, end in ((0, 14), (2, 5), (4, 4), (13, 14), (12, 40), (14, 20)):
        found, reply = read(spool, begin, end, layouts)
        assert found == list(range(begin, min(end, 14)))
        assert (reply["visible"], reply["state"], reply["first"]) == (14, SEALED, 0)


def test_it_takes_no_lease_and_moves_nobody(spool):
    write(spool.endpoint, "run", [[10]])
    reader = RunClient(spool.url("run"), timeout=10)
    try:
        reader.open("group")
        for _ in range(2):
            assert read(spool, 3, 10)[0] == list(range(3, 10))
        _, reply = ask(spool.endpoint, InspectRun(run="run"))
        group = reply["groups"]["group"]
        assert (group["acknowledged"], group["delivered"], group["shards"]) == (None, None, 1)
        assert len(reply["readers"]) == 1
        reader.request(Fetch(epoch=0, seed=None, begin=0, rows=10, stride=0, times=1, need=10))
        assert reader.collect(10.0).count == 10
    finally:
        reader.close()


def test_it_is_answered_at_once_with_what_is_visible(spool):
    winner = push(spool.endpoint, "run", "one", 0, 0, 0, [5], kind="stream")
    assert read(spool, 0, 100)[0] == []  # staged
    commit(spool.endpoint, "run", "one", [winner])
    found, reply = read(spool, 0, 100)
    assert found == [0, 1, 2, 3, 4] and reply["state"] == OPEN


def test_rows_that_are_not_kept_are_refused_and_the_first_kept_one_is_told(spool):
    for number in range(2):
        winner = push(spool.endpoint, "run", f"job {number}", 0, number, 5 * number, [5], kind="stream")
        commit(spool.endpoint, "run", f"job {number}", [winner])
    reader = RunClient(spool.url("run"), timeout=10)
    reader.open("group")
    reader.acknowledge(0, 5, [])
    reader.close()
    assert read(spool, 0, 0)[1]["first"] == 5
    assert ask(spool.endpoint, InspectRun(run="run"))[1]["first"] == 5
    assert read(spool, 5, 10)[0] == [5, 6, 7, 8, 9]
    with pytest.raises(Broken, match="not kept any more"):
        read(spool, 4, 10)


def test_a_run_is_told_from_a_later_one_of_its_name(spool):
    write(spool.endpoint, "run", [[5]])
    created = read(spool, 0, 0)[1]["run_id"]
    assert read(spool, 0, 5)[1]["run_id"] == created
    ask(spool.endpoint, DeleteRun(run="run"))
    with pytest.raises(OptionError, match="there is no run 'run'"):
        read(spool, 0, 5)
    write(spool.endpoint, "run", [[5]])
    assert read(spool, 0, 0)[1]["run_id"] != created


def test_too_much_at_a_time_is_refused(spool, monkeypatch):
    monkeypatch.setattr("transfer.spool.server.answers.MAX_ANSWER", 1000)
    write(spool.endpoint, "run", [[500]])
    assert len(read(spool, 0, 125)[0]) == 125
    with pytest.raises(UsageError, match="a fetch of 126 rows"):
        read(spool, 0, 126)


def test_many_read_at_once(spool):
    write(spool.endpoint, "run", [[100] * 10])
    found = [None] * 4

    def work(number):
        link = ReconnectingClient(spool.endpoint, timeout=20)
        rows = []
        for begin in range(0, 1000, 70):
            arrays, _ = link.ask(Read(run="run", begin=begin, end=begin + 70))
            rows += agrees(arrays)
        link.close()
        found[number] = rows

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert found == [list(range(1000))] * 4


def test_a_refusal_of_any_class_is_final(spool, monkeypatch):
    """A Broken that the spool answers is no broken connection: it is not asked again until the deadline."""
    monkeypatch.setattr("transfer.spool.server.attempt_ends._MISSING", 0.1)
    write(spool.endpoint, "run", [[5]], kind="stream")
    reader = RunClient(spool.url("run"), timeout=10)
    reader.open("group")
    reader.acknowledge(0, 5, [])
    reader.close()
    link = ReconnectingClient(spool.endpoint, timeout=3600)
    try:
        with pytest.raises(Broken, match="not kept any more"):
            link.ask(Read(run="run", begin=0, end=5))
        with pytest.raises(Broken, match="is missing"):
            link.ask(Ended(run="run", job="nobody's", partition=0, attempt=0))
        run_id = link.ask(Read(run="run", begin=0, end=0))[1]["run_id"]
        with pytest.raises(UsageError, match="has not opened"):
            link.ask(
                Acknowledge(
                    run="run", run_id=run_id, group="nobody", shard=0, shards=1, epoch=0, row=0, steps=[]
                )
            )
    finally:
        link.close()
