"""What a socket keeps of each thread that receives from it, for as long as the thread lives."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any
from weakref import ref


class ReceivingThread:
    """One thread. Attributes, not items: they are written without a call, in which a signal handler could
    raise."""

    __slots__ = ("__weakref__", "given", "rest", "stream")

    def __init__(self) -> None:
        #: the core's message, until the call that receives it ends: its stream and frames
        self.given: tuple[Any, list[Any]] | None = None
        #: the parts of a message that `recv` has not returned yet
        self.rest: deque[Any] = deque()
        #: the stream of its newest message, if that passed through `_recv_frames`
        self.stream: Any = None


class _Here(threading.local):
    def __init__(self, known: dict[int, ref[ReceivingThread]]) -> None:
        # Called once in each thread that asks.
        self.thread = ReceivingThread()
        number = id(self.thread)
        known[number] = ref(self.thread, lambda _gone: known.pop(number, None))


class ReceivingThreads:
    """The threads that receive from one socket.

    A thread's end frees its data. To ask the interpreter which threads live (`sys._current_frames`) can hang
    CPython 3.11: it holds a lock that freeing thread-local data needs, and may collect garbage meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[int, ref[ReceivingThread]] = {}
        #: `here.thread` is that of the caller
        self.here = _Here(self._known)

    def all(self) -> list[ReceivingThread]:
        # Of a list: other threads come and go during the iteration.
        return [thread for known in list(self._known.values()) if (thread := known()) is not None]
