"""One thread commits for all who wait; a caller commits itself while the disk is quick."""

from __future__ import annotations

import os
import threading
import time

import pytest

from transfer.log import Log
from transfer.log.group_committer import GroupCommitter
from transfer.transports.errors import Again, InternalError

NAME = "transfer-test-sync"


class Told:
    def __init__(self) -> None:
        self.committed: list[tuple[int, str]] = []
        self.failed: list[str] = []

    def note(self, sequence: int) -> None:
        self.committed.append((sequence, threading.current_thread().name))

    def fail(self, error: Exception) -> None:
        self.failed.append(str(error))


class SlowLog:
    """A log whose commits last so many seconds, or fail."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.error: BaseException | None = None
        self.late = 0  # commits that are not done within their time-out
        self.by: list[str] = []
        self.timeouts: list[float] = []

    def commit(self, sequence: int, timeout: float) -> None:
        self.by.append(threading.current_thread().name)
        self.timeouts.append(timeout)
        time.sleep(self.seconds)
        if self.late:
            self.late -= 1
            raise Again("not yet")
        if self.error is not None:
            raise self.error


@pytest.fixture
def results():
    return Told()


@pytest.fixture
def log():
    return SlowLog()


@pytest.fixture
def committer(log, results):
    committer = GroupCommitter(log, NAME, results.note, results.fail)
    yield committer
    committer.close()
    committer.close()


def until(done) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def quick(committer, results, log) -> None:
    """The thread has committed so often and so quickly that the caller may."""
    for sequence in range(40):
        committer.want(sequence)
        until(lambda wanted=sequence: results.committed and results.committed[-1][0] == wanted)
    committer._average = 0.0  # whatever else this machine does
    log.by.clear()
    results.committed.clear()


def test_at_first_the_thread_does_it(committer, log, results):
    assert not committer.commit_here(0)
    assert not log.by
    committer.want(0)
    until(lambda: results.committed)
    assert log.by == [NAME]
    assert results.committed == [(0, NAME)]


def test_the_caller_does_it_while_it_is_quick(committer, log, results):
    quick(committer, results, log)
    assert committer.commit_here(50)
    assert not results.committed, "the caller knows"
    assert log.by == ["MainThread"]
    committer.want(50)  # it is there: no thread is woken for it
    log.seconds = 0.05
    assert committer.commit_here(51)
    assert not committer.commit_here(52), "it was slow just now"
    committer.want(52)
    until(lambda: results.committed and results.committed[-1][0] == 52)
    assert log.by == ["MainThread", "MainThread", NAME]


def test_not_while_the_thread_is_at_it(committer, log, results):
    quick(committer, results, log)
    log.seconds = 0.2
    committer.want(50)
    assert not committer.commit_here(51)
    until(lambda: results.committed)


@pytest.mark.parametrize("error", [InternalError("the disk"), ValueError("the disk")])
def test_a_failure_is_raised_here_and_told_once(committer, log, results, error):
    quick(committer, results, log)
    log.error = error
    with pytest.raises(InternalError, match="the disk"):
        committer.commit_here(50)
    committer.fail(InternalError("another"))
    assert len(results.failed) == 1
    assert "the disk" in results.failed[0]
    assert not results.committed
    assert committer.failure is not None


@pytest.mark.parametrize("error", [InternalError("the disk"), ValueError("the disk"), SystemExit("the disk")])
def test_whatever_ends_the_thread_is_told(committer, log, results, error):
    log.error = error
    called = []
    committer.when_committed(0, lambda: called.append(0))
    until(lambda: results.failed)
    assert "the disk" in results.failed[0]
    assert not called
    committer.when_committed(1, lambda: called.append(1))
    assert not called


def test_what_cannot_be_booked_fails(log, results):
    def books(sequence):
        raise KeyError("a run")

    committer = GroupCommitter(log, NAME, books, results.fail)
    committer.want(0)
    until(lambda: results.failed)
    assert "a run" in results.failed[0]
    committer.close()


def test_callbacks_come_behind_the_commit_and_a_failing_one_stops_no_other(committer, results):
    called = []
    committer.when_committed(3, lambda: called.append(1 / 0))
    committer.when_committed(1, lambda: called.append(results.committed[-1][0]))
    until(lambda: called)
    assert called[0] >= 1


def test_a_commit_that_is_late_is_asked_for_again(committer, log, results):
    """Each with a finite time-out: `Condition.wait(inf)` raises OverflowError."""
    log.late = 3
    called = []
    committer.when_committed(0, lambda: called.append(0))
    until(lambda: called)
    assert called == [0]
    assert results.committed == [(0, NAME)]
    assert len(log.timeouts) == 4
    assert max(log.timeouts) <= 3600.0


def test_closing_commits_first(log, results):
    log.seconds = 0.05
    called = []
    committer = GroupCommitter(log, NAME, results.note, results.fail)
    committer.when_committed(0, lambda: called.append(0))
    committer.when_committed(1, lambda: called.append(1))
    committer.close()
    assert called == [0, 1]


def test_what_was_committed_is_on_the_disk(results, tmp_path):
    with Log(tmp_path, fsync="always") as log:
        committer = GroupCommitter(log, NAME, results.note, results.fail)
        committer._average = 0.0
        sequence, _ = log.append("t", b"x")
        assert committer.commit_here(sequence)
        assert log._journal.synced == sequence + 1
        committer.close()


def test_it_waits_for_another_thread_s_sync(results, tmp_path, monkeypatch):
    """Others commit the same log all the time: the publishers of a broker with a spool inside."""
    with Log(tmp_path, fsync="always") as log:
        held, go_on = threading.Event(), threading.Event()
        sync = os.fdatasync

        def slow(descriptor):
            held.set()
            assert go_on.wait(10)
            sync(descriptor)

        log.append("t", b"x")
        monkeypatch.setattr("transfer.log.segment.os.fdatasync", slow)
        other = threading.Thread(target=lambda: log.commit(timeout=10.0))
        other.start()
        assert held.wait(10)
        sequence, _ = log.append("t", b"y")
        committer = GroupCommitter(log, NAME, results.note, results.fail)
        committer.want(sequence)
        time.sleep(0.05)
        assert not results.failed
        go_on.set()
        other.join(10)
        until(lambda: results.committed)
        committer.close()
    assert not results.failed
