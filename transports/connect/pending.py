"""Connections whose peers have not authenticated yet, of all listeners of this process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from transfer.transports.descriptors import share_of_descriptors

#: the limit for one process, unless a listener allows more
MOST = 4096


class PendingBudget:
    """One budget for all listeners. Thread-safe; it does no I/O.

    A listener adds each connection that it accepts, and removes it when its peer has authenticated. When
    there are too many, the oldest one is closed, at whichever listener it is, so that silent peers keep no
    other peer out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._evict: OrderedDict[object, Callable[[], object]] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._evict)

    def add(self, connection: object, evict: Callable[[], object]) -> None:
        """evict: ends it. Called in any thread, without the lock; the connection may have ended already."""
        with self._lock:
            self._evict[connection] = evict

    def remove(self, connection: object) -> None:
        """Idempotent."""
        with self._lock:
            self._evict.pop(connection, None)

    def trim(self, most: int = MOST) -> None:
        """Ends the oldest connections above the limit. Not to be called under a lock that `evict` takes."""
        self._end(len(self) - min(max(most, MOST), share_of_descriptors()))

    def make_room(self) -> bool:
        """Ends the oldest quarter, when no descriptor is left for new ones. False: there are none."""
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
        """In a forked child: the connections are the parent's, and the lock may be held for ever."""
        self.__init__()  # type: ignore[misc]


#: the budget of this process
PENDING = PendingBudget()
os.register_at_fork(after_in_child=PENDING.forget)
