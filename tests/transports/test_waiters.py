"""Waits that a raising signal handler interrupts anywhere: no lock stays taken, none is given up twice."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import pytest

import transfer
from transfer.transports.errors import Again
from transfer.transports.waiters import Waiters


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupted():
    """Calls a function again and again for a second, while a handler raises at any place in it."""

    def raises(number, frame):
        raise Interrupted

    def run(function):
        end, count = time.monotonic() + 1.0, 0
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                function()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (Interrupted, Again):
                count += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert count > 100

    before = signal.signal(signal.SIGALRM, raises)
    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def is_free(lock):
    """Whether another thread can take it."""
    taken = []

    def take():
        if lock.acquire(timeout=5):
            taken.append(True)
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    return bool(taken)


def test_a_change_is_found_by_all_who_wait():
    waiters, numbers, found = Waiters(threading.Lock()), [], []
    threads = [
        threading.Thread(target=lambda n=n: found.append(waiters.wait_for(lambda: len(numbers) >= n, 20)))
        for n in (1, 1, 2)
    ]
    for thread in threads:
        thread.start()
    for number in range(2):
        with waiters.lock:
            numbers.append(number)
            waiters.notify_all()
        time.sleep(0.05)
    for thread in threads:
        thread.join(10)
    assert found == [True] * 3 and not waiters._waiting


def test_the_time_ends():
    waiters = Waiters(threading.RLock())
    assert waiters.wait_for(lambda: 0, 0) == 0
    assert waiters.wait_for(list, 0.05) == []
    waiters.wait(0.01)
    assert not waiters._waiting


def test_interrupted_waits_leave_the_lock(interrupted):
    waiters = Waiters(threading.RLock())
    interrupted(lambda: waiters.wait_for(lambda: False, 0.001))
    assert is_free(waiters.lock) and len(waiters._waiting) < 10


def test_interrupted_waits_of_a_socket(interrupted):
    """With `threading.Condition` the reactor, or `close`, hung for ever on the lock that was left."""
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=5000) as pull:
        pull.bind("tcp://127.0.0.1:*")
        monitor = pull.get_monitor()
        interrupted(lambda: pull.wait_for_peers(1, 0.001))
        interrupted(lambda: monitor.recv(0.001))
        with context.socket(transfer.PUSH) as push:
            push.connect(pull.last_endpoint)
            tracker = push.send(b"hello", track=True)
            interrupted(lambda: tracker.wait_confirmed(0.001))
            assert pull.recv() == b"hello"
            tracker.wait_confirmed(10)
            assert is_free(pull._links.state.lock) and is_free(tracker._lock)
        with suppress(Again):
            while monitor.recv(0):
                pass
