"""What goes by its age, and what stays: against a clock that the test sets, over restarts."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest

from transfer.spool.format.protocol import CommitJob, Declare, Ended
from transfer.spool.format.row_source import FAILED, OPEN
from transfer.spool.format.run_messages import to_table
from transfer.spool.server.expiry import Expiry
from transfer.spool.server.ledger import REMEMBERED_JOBS, Run
from transfer.spool.server.max_ages import Ages
from transfer.spool.server.run_record import RunRecord
from transfer.spool.server.store import SpoolStore
from transfer.transports.errors import Broken, OptionError

from .socketless_spool import SocketlessSpool
from .task_sender import WIDE, Task
from .test_store import disk, make, send, small_segments, sync  # noqa: F401

AGES = Ages(retention=1000.0, staged=100.0, failed=200.0, group=300.0, unread=400.0)


class Stores:
    """A store whose time the test sets, and its expiry; `restart` makes another one of the same folder."""

    def __init__(self, folder):
        self.folder = folder
        self.time = 1e9
        self.removed = []
        self.number = 0
        self.store = SpoolStore(folder / "0")
        self._start()

    def _start(self):
        self.store.now = lambda: self.time
        self.expiry = Expiry(self.store, AGES, lambda reason, nbytes: self.removed.append((reason, nbytes)))

    def restart(self):
        sync(self.store)
        self.store.close()
        self.number += 1
        folder = shutil.copytree(self.folder / str(self.number - 1), self.folder / str(self.number))
        self.store = SpoolStore(folder)
        self._start()

    def after(self, seconds, reading=(), restarts=0):
        """So much later, with looks on the way; the reasons of removals."""
        self.removed.clear()
        for part in range(20):
            self.time += seconds / 20
            if part in range(2, 2 + restarts * 4, 4):
                self.restart()
            self.expiry.check({(self.store.entries[run].number, group) for run, group in reading})
        return [reason for reason, _ in self.removed]


@pytest.fixture
def stores(tmp_path):
    stores = Stores(tmp_path)
    yield stores
    stores.store.close()


@pytest.mark.parametrize("restarts", [0, 3])
def test_staged_rows_of_a_job_that_sends_nothing(stores, restarts, caplog):
    """Its driver died, which nothing tells the spool."""
    store = stores.store
    store.declare("run", "job", "committed", "batch")
    empty = disk(store)
    send(store, Task("run", "job", 0, 0, 0, [64] * 8, WIDE))
    assert disk(store) - empty >= 4 << 20
    with caplog.at_level(logging.WARNING, "transfer.spool"):
        assert stores.after(90, restarts=restarts) == []
        assert stores.after(40) == ["staged"]
    assert "job job of run run" in caplog.text and stores.removed[0][1] >= 4 << 20
    assert disk(stores.store) <= empty + (1 << 20)
    assert stores.store.entry("run").run.state == FAILED
    assert stores.store.declare("run", "other", "committed", "batch")


def test_what_goes_by_its_age_is_committed_though_nothing_else_is(tmp_path):
    """Readers see that the run failed, and the room of what went is free."""
    spool = SocketlessSpool(tmp_path)
    spool.ask(Declare(run="run", job="job", delivery="committed", kind="batch"))
    for message, arrays in Task("run", "job", 0, 0, 0, [64] * 8, WIDE).messages:
        spool.receive(message, arrays)
    spool.sync()
    full, began = disk(spool.store), spool.store.now()
    spool.store.now = lambda: began + 100_000.0
    spool.tick()
    spool.committer.flush()
    assert spool.store.entry("run").state == FAILED
    assert disk(spool.store) <= full - (4 << 20) + (1 << 20)
    spool.store.now = lambda: began + 1_000_000.0
    spool.tick()
    spool.committer.flush()
    spool.restart(crash=True)
    assert not spool.store.entries
    spool.close()


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_who_comes_late_for_rows_that_went_hears_why(tmp_path, kind, restarts):
    """A task, its end, the commit: until the driver begins anew."""
    spool = SocketlessSpool(tmp_path)
    declared = {"run": "run", "job": "job", "delivery": "committed", "kind": kind}
    spool.ask(Declare(**declared))
    task, late = (Task("run", "job", partition, 0, 0, [8]) for partition in range(2))
    for message, arrays in [*task.messages, *late.messages[:-1]]:
        spool.receive(message, arrays)
    entry = spool.store.entry("run")
    spool.store.expire(entry, "job", 60.0)
    for _ in range(restarts):
        spool.restart(crash=False)
    match = "job job had sent for run run was removed.* 60 s"
    with pytest.raises(Broken, match=match):
        spool.ask(Declare(**declared, task=True))
    spool.receive(*late.messages[-1])
    spool.committer.flush()
    with pytest.raises(Broken, match=match):
        spool.ask(Ended(run="run", job="job", partition=1, attempt=0))
    columns = {name: np.array(column, np.int64) for name, column in to_table([task.winner]).items()}
    with pytest.raises(Broken, match=match):
        spool.ask(CommitJob(run="run", job="job"), columns)
    spool.ask(Declare(**declared))
    spool.ask(Declare(**declared, task=True))
    again = Task("run", "job", 0, 1, 0, [8])
    for message, arrays in again.messages:
        spool.receive(message, arrays)
    columns = {name: np.array(column, np.int64) for name, column in to_table([again.winner]).items()}
    assert spool.ask(CommitJob(run="run", job="job"), columns)[1]["rows"] == 8
    spool.close()


def test_of_few_jobs_it_is_known_that_their_rows_went():
    entry = RunRecord(Run("run", "committed", "batch"), 1, 0.0, "id")
    for job in range(REMEMBERED_JOBS + 10):
        entry.expire(str(job), 60.0)
    assert [*entry.expired] == [str(job) for job in range(10, REMEMBERED_JOBS + 10)]


def test_a_job_that_sends_now_and_then_keeps_its_rows(stores):
    stores.store.declare("run", "slow", "committed", "stream")
    stores.store.declare("run", "dead", "committed", "stream")
    for attempt, job in enumerate(["slow", "dead"]):
        send(stores.store, Task("run", job, 0, attempt, 0, [8], WIDE))
    assert stores.after(90) == []
    send(stores.store, Task("run", "slow", 1, 7, 0, [8], WIDE))
    assert stores.after(90, restarts=2) == ["staged"]
    assert [*stores.store.entry("run").run.jobs] == ["slow"]


def test_a_small_age_leaves_the_others_their_grace(tmp_path):
    """A spool that was away for long starts: who reads for a group has more time to come back than a job."""
    removed, time = [], [1e9]
    store = SpoolStore(tmp_path / "spool")
    make(store, "run", 1)
    store.group(store.entry("run"), "group").used = time[0]
    store.declare("other", "job", "committed", "batch")
    send(store, Task("other", "job", 0, 0, 0, [8], WIDE))
    store.now = lambda: time[0]
    store.entry("other").active["job"] = time[0]
    time[0] += 1e6
    ages = Ages(staged=10.0, group=300.0, failed=None, unread=None)
    expiry = Expiry(store, ages, lambda reason, _: removed.append((reason, time[0] - 1e9 - 1e6)))
    for _ in range(40):
        time[0] += 1
        expiry.check(())
    assert removed == [("staged", 1.0), ("group", 30.0)]
    store.close()


@pytest.mark.parametrize("restarts", [0, 3])
def test_failed_runs(stores, restarts):
    stores.store.declare("run", "job", "committed", "batch")
    send(stores.store, Task("run", "job", 0, 0, 0, [8], WIDE))
    stores.store.abort("run", "job")
    sync(stores.store)
    assert stores.after(190, restarts=restarts) == []
    assert stores.after(40) == ["failed"]
    assert not stores.store.entries


@pytest.mark.parametrize("restarts", [0, 3])
def test_runs_that_nothing_reads(stores, restarts):
    make(stores.store, "run", 1)
    stores.store.declare("never written", "job", "committed", "batch")
    assert stores.after(380, restarts=restarts) == []
    assert stores.after(80) == ["unread", "unread"]
    assert not stores.store.entries


def test_runs_that_are_read_stay_however_old(stores):
    make(stores.store, "run", 1)
    stores.store.group(stores.store.entry("run"), "group")
    assert stores.after(5000, reading=[("run", "group")], restarts=1) == []
    # It has not read all of it, so it holds the run until it is given up itself.
    assert stores.after(900) == ["group"]
    assert stores.after(300) == ["read"]


def test_runs_that_all_groups_have_read(stores):
    make(stores.store, "run", 1)
    stores.store.acknowledge("run", "group", (0, 16), [])
    assert stores.after(980, restarts=2) == ["group"]  # it holds nothing
    assert stores.removed[0][1] == 0
    assert stores.after(100) == ["read"]


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_group_that_was_given_up_holds_no_rows_of_a_stream(stores, restarts):
    for job in "abc":
        make(stores.store, "run", 2, kind="stream", job=job)
    stores.store.acknowledge("run", "gone", (0, 16), [])
    stores.store.acknowledge("run", "there", (0, 80), [])
    entry = stores.store.entry("run")
    assert (entry.first, stores.store.log.disk_bytes > 0) == (16, True)
    assert stores.after(280, reading=[("run", "there")], restarts=restarts) == []
    assert stores.after(60, reading=[("run", "there")]) == ["group"]
    assert stores.removed[0][1] == 64 * (8 + 8192)
    entry = stores.store.entry("run")
    assert (entry.first, entry.groups["gone"].given_up) == (80, True)
    stores.restart()
    assert stores.store.entry("run").first == 80


def test_a_stream_whose_only_group_was_given_up(stores):
    """Its rows go after the same time again, unless a group comes."""
    make(stores.store, "run", 2, kind="stream")
    stores.store.acknowledge("run", "gone", (0, 8), [])
    assert stores.after(340) == ["group"]
    make(stores.store, "run", 2, kind="stream", job="later")
    assert stores.after(340, restarts=1) == ["unread"]
    assert stores.store.entry("run").first == 32
    make(stores.store, "run", 1, kind="stream", job="last")
    assert stores.after(200) == []
    stores.store.group(stores.store.entry("run"), "new")
    assert stores.after(400, reading=[("run", "new")]) == []


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_stream_that_was_read_stays_with_its_positions(stores, restarts):
    """Only rows go: who comes back reads on, and no other stream takes its name."""
    make(stores.store, "run", 2, kind="stream")
    stores.store.acknowledge("run", "gone", (0, 32), [[0, 1, 0, 0, 32, 1, 0]])
    sync(stores.store)
    run_id = stores.store.entry("run").run_id
    assert stores.after(340) == ["group"]
    assert stores.after(5000, restarts=restarts) == []
    entry = stores.store.entry("run")
    assert (entry.run_id, entry.groups["gone"].acknowledged) == (run_id, (0, 32))
    assert stores.store.lineage(entry, "gone")
    make(stores.store, "never opened", 2, kind="stream")
    assert stores.after(500) == ["unread"] and [*stores.store.entries] == ["run"]


def test_a_folder_of_a_release_that_noted_no_activity(stores, monkeypatch):
    make(stores.store, "run", 1)
    entry = stores.store.entry("run")
    entry.touched = 0.0
    stores.store._runs.put(entry)
    stores.restart()
    stores.store.entry("run").touched = stores.time  # the store had begun with its own clock
    assert stores.after(380, restarts=3) == []
    assert stores.after(80) == ["unread"]


def test_ages_without_end(tmp_path):
    store = SpoolStore(tmp_path)
    expiry = Expiry(store, Ages(None, None, None, None, None))
    make(store, "run", 1)
    began = store.now()
    store.now = lambda: began + 1e9
    expiry.check(())
    assert store.entry("run").state != OPEN
    store.close()


@pytest.mark.parametrize("age", [0, -1.0, float("nan")])
def test_ages_that_are_none(age):
    with pytest.raises(OptionError, match="staged"):
        Ages(staged=age)


def test_a_damaged_run_stays(stores):
    make(stores.store, "run", 1)
    stores.store.entry("run").damage = "a record"
    assert stores.after(5000) == []
