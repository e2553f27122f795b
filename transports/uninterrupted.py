"""Runs steps to their end, although a signal handler may raise between any two of them.

The interpreter runs handlers in the main thread only. So another thread executes the steps, and an
interruption ends the wait for it, not the work.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: seconds that the wait may take; the steps continue after them, too
_PATIENCE = 5.0
#: seconds after which a thread that has not begun has failed: without memory it ends before its first step
_UNTIL_BEGUN = 1.0


def uninterrupted(call: Callable[[], T], otherwise: T) -> T:
    """The call's result; `otherwise` if it takes too long. The call must not raise, nor take a lock that its
    caller holds."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    begun = _thread.allocate_lock()  # by the thread that does the steps
    done = _thread.allocate_lock()  # no Event: its internal lock stays taken if the wait is interrupted
    done.acquire(timeout=_PATIENCE)  # it is free

    def step() -> None:
        if begun.acquire(blocking=False):
            try:
                results.append(call())
            finally:
                done.release()

    try:
        _thread.start_new_thread(_start, (step,))
    except (RuntimeError, MemoryError):  # the interpreter ends, or the system has no more threads
        return call()
    if not done.acquire(timeout=_UNTIL_BEGUN):
        if begun.acquire(blocking=False):
            return call()
        done.acquire(timeout=_PATIENCE)
    return results[0] if results else otherwise


def _start(step: Callable[[], None]) -> None:
    """Starts the thread that `threading` registers. An exception of a handler inside that would leave a
    thread that ends before its first step, so the main thread does not do it."""
    try:
        threading.Thread(target=step, name="transfer-step", daemon=True).start()
    except (RuntimeError, MemoryError):
        step()
