"""What a socket keeps of each thread that uses it, for as long as the thread lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from transfer.transports.core.contract import SocketThread


class _Here(threading.local):
    def __init__(self, make: Callable[[], SocketThread], known: dict[int, ref[SocketThread]]) -> None:
        # Called once in each thread that asks.
        self.thread = make()
        number = id(self.thread)
        known[number] = ref(self.thread, lambda _gone: known.pop(number, None))


class SocketThreads:
    """The threads that use one socket.

    A thread's end frees its data. To ask the interpreter which threads live (`sys._current_frames`) can hang
    CPython 3.11: it holds a lock that freeing thread-local data needs, and may collect garbage meanwhile.
    """

    def __init__(self, make: Callable[[], SocketThread]) -> None:
        """make: a class of the core, with what it counts in."""
        self._known: dict[int, ref[SocketThread]] = {}
        #: `here.thread` is that of the caller
        self.here = _Here(make, self._known)

    def all(self) -> list[SocketThread]:
        # Of a list: other threads come and go during the iteration.
        return [thread for known in list(self._known.values()) if (thread := known()) is not None]
