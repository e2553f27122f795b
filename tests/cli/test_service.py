"""What commands share that serve until a signal ends them."""

from __future__ import annotations

import signal
import sys

import pytest

from transfer.cli.service import StopEvent


def test_it_is_set_and_waited_for():
    asked = StopEvent()
    assert not asked.wait(0.01) and not asked.is_set()
    asked.set()
    asked.set()
    assert asked.wait(0) and asked.wait(20) and asked.is_set()


@pytest.fixture
def handlers():
    """Handlers of signals are as before afterwards."""
    numbers = (signal.SIGUSR1, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def stuck(*_):
    raise AssertionError("the handler waits for a lock of the thread that it interrupts")


def test_a_signal_at_any_step_of_a_wait_sets_it(handlers):
    """`threading.Event` holds its lock at some of them, and its `set` in a handler waits for it for ever."""
    signal.signal(signal.SIGALRM, stuck)
    for step in range(1000):
        asked, steps = StopEvent(), 0
        signal.signal(signal.SIGUSR1, lambda *_, asked=asked: asked.set())

        def trace(frame, event, argument, step=step):
            nonlocal steps
            steps += 1
            if steps == step + 1:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR1)
            return trace

        signal.setitimer(signal.ITIMER_REAL, 5)
        sys.settrace(trace)
        try:
            found = asked.wait(0.001)
        finally:
            sys.settrace(None)
        if steps <= step:  # the wait has no more steps
            break
        assert found or asked.wait(0)
    assert step > 3 and not found
