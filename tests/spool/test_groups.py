"""Groups of readers: positions of their own, and when a run goes that all of them have read."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from transfer.spool import Spool
from transfer.spool.client.admin import SpoolAdmin
from transfer.spool.client.run_client import RunClient
from transfer.spool.format.protocol import Declare, Fetch, InspectRun, ListRuns
from transfer.spool.format.row_source import FAILED
from transfer.spool.server.max_ages import Ages
from transfer.transports.errors import Broken, OptionError, UsageError

from .task_sender import ask, commit, push, write


@contextmanager
def reading(spool, run, group):
    client = RunClient(spool.url(run), timeout=10.0)
    try:
        client.open(group)
        yield client
    finally:
        client.close()


def runs_of(spool):
    return {run["name"] for run in ask(spool.endpoint, ListRuns())[1]["runs"]}


def rows_of(client, begin, rows, epoch=0, seed=None):
    client.request(
        Fetch(epoch=epoch, seed=seed, begin=begin, rows=rows, stride=rows, times=1, need=begin + rows)
    )
    return client.collect(10).arrays["id"].tolist()


def test_groups_read_at_their_own_speeds(tmp_path):
    """Their leases are no matter of the other's either."""
    with Spool(tmp_path) as spool:
        write(spool.endpoint, "run", [[100, 100]])
        with reading(spool, "run", "slow") as slow, reading(spool, "run", "quick") as quick:
            assert rows_of(slow, 0, 10) == list(range(10))
            for epoch in range(3):
                assert sorted(rows_of(quick, 0, 200, epoch, seed=7)) == list(range(200))
            slow.acknowledge(0, 10, [])
            quick.acknowledge(3, 0, [])
            assert rows_of(slow, 10, 10) == list(range(10, 20))
        groups = ask(spool.endpoint, InspectRun(run="run"))[1]["groups"]
    assert {name: group["acknowledged"] for name, group in groups.items()} == {
        "slow": [0, 10],
        "quick": [3, 0],
    }


def test_an_old_run_goes_when_all_groups_have_read_it_and_nobody_reads(tmp_path):
    """Not one that nobody has read, nor one whose group is not through, nor one that is being read."""
    with Spool(tmp_path, retention_age=0.2) as spool:
        for run in ("unread", "begun", "read"):
            write(spool.endpoint, run, [[4, 4]])
        with reading(spool, "begun", "group") as begun:
            begun.acknowledge(0, 5, [])
        with reading(spool, "read", "group") as client:
            client.acknowledge(0, 8, [])
            time.sleep(1.2)  # its age is over, and the spool has looked twice
            assert runs_of(spool) == {"unread", "begun", "read"}
        deadline = time.monotonic() + 20
        while "read" in runs_of(spool):
            assert time.monotonic() < deadline, "it stays"
            time.sleep(0.05)
        time.sleep(0.6)
        assert runs_of(spool) == {"unread", "begun"}


def test_what_is_acknowledged_again_is_young_again(tmp_path):
    with Spool(tmp_path, retention_age=3600) as spool:
        write(spool.endpoint, "run", [[4]])
        entry = spool.store.entry("run")
        entry.touched = 0.0
        with reading(spool, "run", "group") as client:
            client.acknowledge(0, 4, [])
        assert entry.touched == pytest.approx(time.time(), abs=60)


def test_a_group_that_is_forgotten_lets_go_of_a_streams_rows(tmp_path):
    with Spool(tmp_path) as spool, SpoolAdmin(spool.url()) as admin:
        winner = push(spool.endpoint, "run", "job", 0, 0, 0, [4, 4], kind="stream")
        commit(spool.endpoint, "run", "job", [winner])
        with reading(spool, "run", "quick") as quick, reading(spool, "run", "slow") as slow:
            quick.acknowledge(0, 8, [])
            slow.acknowledge(0, 4, [])
            groups = admin.groups("run")
            assert [(name, one["held_bytes"], one["behind"]) for name, one in groups.items()] == [
                ("quick", 0, 0),
                ("slow", 32, 4),
            ]
            with pytest.raises(UsageError, match="has 1 readers"):
                admin.forget_group("run", "slow")
            slow.request(Fetch(epoch=0, seed=None, begin=8, rows=4, stride=0, times=1, need=12))
            assert admin.forget_group("run", "slow", force=True) == 32
            with pytest.raises(Broken, match="was forgotten"):
                slow.collect(20.0)
            slow.request(Fetch(epoch=0, seed=None, begin=4, rows=4, stride=0, times=1, need=8))
            with pytest.raises(Broken, match=r"(?s)was forgotten.*begins as a new group"):
                slow.collect(20.0)
            with pytest.raises(UsageError, match="was forgotten"):
                slow.acknowledge(0, 8, [])
        with pytest.raises(OptionError, match="there are: quick"):
            admin.forget_group("run", "slow")
        assert admin.overview()["runs"][0]["kept_bytes"] == 0
    with Spool(tmp_path) as spool:
        assert [*spool.store.entry("run").groups] == ["quick"]


def test_a_group_that_was_given_up_is_told_which_rows_are_gone(tmp_path):
    with Spool(tmp_path) as spool:
        winner = push(spool.endpoint, "run", "job", 0, 0, 0, [4, 4], kind="stream")
        commit(spool.endpoint, "run", "job", [winner])
        with reading(spool, "run", "slow") as slow:
            slow.acknowledge(0, 4, [])
        entry = spool.store.entry("run")
        entry.groups["slow"].given_up = True
        with reading(spool, "run", "slow"):  # nothing of it is gone yet
            assert not entry.groups["slow"].given_up
        entry.groups["slow"].given_up = True
        spool.store.trim_to(entry, 8)
        refused = pytest.raises(Broken, match="its rows 4 to 8 are not kept any more")
        with refused as caught, reading(spool, "run", "slow"):
            pass
        assert "forget-group" in caught.value.hint


def test_what_was_removed_is_counted(tmp_path):
    with Spool(tmp_path, ages=Ages(staged=0.05)) as spool:
        ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
        push(spool.endpoint, "run", "job", 0, 0, 0, [4])
        deadline = time.monotonic() + 20
        while spool.store.entry("run").run.state != FAILED:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        counts = spool.context.tally.ended()
        assert counts["transfer_spool_removals_total", ("staged",)] == 1
        assert counts["transfer_spool_removed_bytes_total", ("staged",)] == 32
