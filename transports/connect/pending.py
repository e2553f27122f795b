"""Connections that have not shown yet who they are, of all listeners of this process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from transfer.transports.descriptors import share_of_descriptors

#: of them at once, in a process, unless a listener allows more by itself
MOST = 4096


class PendingBudget:
    """One budget for all listeners. Thread-safe; it does no I/O.

    A listener adds each connection that it accepts, and removes it when its peer has shown who it is. When
    there are too many, the oldest makes room, at whichever listener it is, so that peers that say nothing
    keep no other out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._evict: OrderedDict[object, Callable[[], object]] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._evict)

    def add(self, connection: object, evict: Callable[[], object]) -> None:
        """evict: ends it. Called on any thread, without our lock; the connection may have ended already."""
        with self._lock:
            self._evict[connection] = evict

    def remove(self, connection: object) -> None:
        """Idempotent."""
        with self._lock:
            self._evict.pop(connection, None)

    def trim(self, most: int = MOST) -> None:
        """Ends the oldest ones that are too many. Not under a lock that `evict` takes."""
        self._end(len(self) - min(max(most, MOST), share_of_descriptors()))

    def make_room(self) -> bool:
        """No descriptor is left for the next ones: ends the oldest quarter. False: there are none."""
        return self._end((len(self) + 3) // 4)

    def _end(self, count: int) -> bool:
        if count <= 0:
            return False
        with self._lock:
            evicted = [self._evict.popitem(last=False)[1] for _ in range(min(count, len(self._evict)))]
        for evict in evicted:
            evict()
        return bool(evicted)

    def forget(self) -> None:
        """In a forked child: they are the parent's, and the lock may be held for ever."""
        self.__init__()  # type: ignore[misc]


#: of this process
PENDING = PendingBudget()
os.register_at_fork(after_in_child=PENDING.forget)
