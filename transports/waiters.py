"""Threads that wait until what a lock guards has changed.

Unlike `threading.Condition`, whose methods are Python code: a handler of a signal (Ctrl-C) that raises leaves
no lock taken, and none is given up twice. A thread that waits holds no lock, and takes locks by `with` alone.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

#: seconds after which a thread looks again, whether or not it was told of a change
_LOOK = 10.0


class Waiters:
    """lock: guards what changes; a Lock or RLock of `threading`. Thread-safe."""

    __slots__ = ("_waiting", "lock")

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self._waiting: deque[Any] = deque()

    def wait_for(self, found: Callable[[], T], timeout: float | None = None) -> T:
        """Returns the first true value of `found()`, or its last one after `timeout` seconds.

        The caller does not hold the lock, which `found` runs under. Call `notify_all` after each change.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            bell = allocate_lock()
            bell.acquire(False)
            with self.lock:
                value = found()
                if value:
                    return value
                self._waiting.append(bell)
            left = _LOOK if deadline is None else min(_LOOK, max(0.0, deadline - time.monotonic()))
            try:
                bell.acquire(True, left)
            finally:
                with suppress(ValueError):
                    self._waiting.remove(bell)
            if deadline is not None and time.monotonic() >= deadline:
                with self.lock:
                    return found()

    def wait(self, timeout: float) -> None:
        """Waits for the next change, at most for `timeout` seconds. The caller does not hold the lock."""
        bell = allocate_lock()
        bell.acquire(False)
        self._waiting.append(bell)
        try:
            bell.acquire(True, timeout)
        finally:
            with suppress(ValueError):
                self._waiting.remove(bell)

    def notify_all(self) -> None:
        """Makes all who wait look again."""
        if not self._waiting:
            return
        with suppress(IndexError):
            while True:
                self._waiting.popleft().release()
