"""Steps of which none may be missing, although a signal's handler may raise between any two of them.

The interpreter runs handlers in the main thread only. So another thread does there what is to be done, and
an interruption ends the waiting for it, not the work.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: seconds that it may take: it goes on behind them, too
_PATIENCE = 5.0


def uninterrupted(call: Callable[[], T], otherwise: T) -> T:
    """The call's result; `otherwise` if it takes too long. The call must not raise, nor want a lock that its
    caller holds."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    results: list[T] = []
    done = _thread.allocate_lock()  # no Event: its own lock stays taken if the wait is interrupted inside
    done.acquire()

    def step() -> None:
        try:
            results.append(call())
        finally:
            done.release()

    try:
        _thread.start_new_thread(_start, (step,))
    except RuntimeError:  # the interpreter ends, or the system has no more threads
        return call()
    done.acquire(timeout=_PATIENCE)
    return results[0] if results else otherwise


def _start(step: Callable[[], None]) -> None:
    """Starts the thread that `threading` knows. An exception of a handler in the middle of that would leave a
    thread which dies before its first step, so it is not the main thread's to do."""
    try:
        threading.Thread(target=step, name="transfer-step", daemon=True).start()
    except RuntimeError:
        step()
