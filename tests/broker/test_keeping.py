"""Who syncs the log: the loop itself while the disk is quick and there is little, else a thread."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from transfer.broker.keeping import Keeper
from transfer.log import Log
from transports.errors import InternalError


class _Told:
    def __init__(self) -> None:
        self.kept: list[tuple[int, str]] = []
        self.failed: list[str] = []

    def note(self, sequence: int) -> None:
        self.kept.append((sequence, threading.current_thread().name))

    def fail(self, error: Exception) -> None:
        self.failed.append(str(error))


class _Slow:
    """A log whose syncs last as long as it is told, or fail."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.error: Exception | None = None
        self.by: list[str] = []

    def commit(self, sequence: int, timeout: float) -> None:
        self.by.append(threading.current_thread().name)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def told():
    return _Told()


def until(loop, done) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        loop.run_until_complete(asyncio.sleep(0.001))


def quick(keeper, loop, told, log) -> None:
    """The thread has synced so often and so quickly that the loop may."""
    for sequence in range(40):
        keeper.want(sequence)
        until(loop, lambda wanted=sequence: told.kept and told.kept[-1][0] == wanted)
    log.by.clear()
    told.kept.clear()


def test_at_first_the_thread_does_it(loop, told):
    keeper = Keeper(log := _Slow(), loop, told.note, told.fail)
    assert not keeper.sync_here(0) and not log.by
    keeper.want(0)
    until(loop, lambda: told.kept)
    assert log.by == ["transfer-broker-sync"] and told.kept == [(0, "MainThread")]
    keeper.close()


def test_the_loop_does_it_while_it_is_quick(loop, told):
    keeper = Keeper(log := _Slow(), loop, told.note, told.fail)
    quick(keeper, loop, told, log)
    assert keeper.sync_here(50)
    assert told.kept == [(50, "MainThread")] and log.by == ["MainThread"]
    keeper.want(50)  # it is there: nobody is woken for it
    log.seconds = 0.05
    assert keeper.sync_here(51)
    assert not keeper.sync_here(52), "it was slow just now"
    keeper.want(52)
    until(loop, lambda: told.kept[-1][0] == 52)
    assert log.by == ["MainThread", "MainThread", "transfer-broker-sync"]
    keeper.close()


def test_not_while_the_thread_is_at_it(loop, told):
    keeper = Keeper(log := _Slow(), loop, told.note, told.fail)
    quick(keeper, loop, told, log)
    log.seconds = 0.2
    keeper.want(50)
    assert not keeper.sync_here(51)
    until(loop, lambda: told.kept)
    keeper.close()


@pytest.mark.parametrize("error", [InternalError("the disk"), ValueError("the disk")])
def test_a_failure_is_told_at_once_and_once(loop, told, error):
    keeper = Keeper(log := _Slow(), loop, told.note, told.fail)
    quick(keeper, loop, told, log)
    log.error = error
    assert keeper.sync_here(50)
    assert len(told.failed) == 1 and "the disk" in told.failed[0] and not told.kept
    keeper.close()


def test_what_was_told_is_on_the_disk(loop, told, tmp_path):
    with Log(tmp_path, fsync="always") as log:
        keeper = Keeper(log, loop, told.note, told.fail)
        keeper._usual = 0.0
        sequence, _ = log.append("t", b"x")
        assert keeper.sync_here(sequence) and told.kept == [(sequence, "MainThread")]
        assert log._journal.synced == sequence + 1
        keeper.close()
