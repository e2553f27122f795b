"""A step that is begun is done, although a handler raises in the main thread meanwhile."""

from __future__ import annotations

import _thread
import signal
import threading
import time

import pytest

from transfer.transports.uninterrupted import uninterrupted


class Interrupted(Exception):
    pass


@pytest.fixture
def handler():
    def raises(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raises)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def arrives(done, count, seconds=20):
    deadline = time.monotonic() + seconds
    while len(done) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(done) >= count


def test_what_it_waits_for_goes_on(handler):
    done, raised = [], threading.Event()

    def step():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        raised.wait(20)
        done.append(True)

    with pytest.raises(Interrupted):
        uninterrupted(step, None)
    assert not done
    raised.set()
    assert arrives(done, 1)


def test_a_thread_that_is_started_does_its_step(handler, monkeypatch):
    """The handler runs at each microsecond of the first millisecond in turn."""
    start, started, done, interrupted = _thread.start_new_thread, [], [], 0

    def counted(*arguments):
        started.append(start(*arguments))

    monkeypatch.setattr(_thread, "start_new_thread", counted)
    for microseconds in range(1, 1000):
        try:
            signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
            uninterrupted(lambda: done.append(time.sleep(0.0002)), None)
            time.sleep(0.001)
        except Interrupted:
            interrupted += 1
    assert interrupted > 500
    assert arrives(done, len(started))


def test_a_thread_that_ends_before_its_first_step(monkeypatch):
    """As one does that is started without memory; the caller does its steps."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 1)
    assert uninterrupted(threading.current_thread, None) is threading.main_thread()


def test_steps_are_done_once_however_late_their_thread_comes(monkeypatch):
    late, done = [], []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *arguments: late.append(arguments))
    uninterrupted(lambda: done.append(True), None)
    ((start, (step,)),) = late
    start(step)
    assert not arrives(done, 2, seconds=0.1)
    assert done == [True]
