"""Groups of readers: positions of their own, and when a run goes that all of them have read."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from transfer.spool.client import RunClient
from transfer.spool.protocol import Fetch, InspectRun, ListRuns
from transfer.spool.server import Spool

from .sending import ask, write


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
