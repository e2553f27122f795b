"""Connections that have not shown yet who they are, of all listeners of this process, and the descriptors
that are kept free for all else."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable

#: of them at once, in a process, unless a listener allows more by itself
MOST = 4096
#: descriptors that no accepted connection takes: files of a log and its database need them
RESERVE = 128


class PendingConnections:
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
PENDING = PendingConnections()
os.register_at_fork(after_in_child=PENDING.forget)


def share_of_descriptors() -> int:
    """How many connections may be pending: a quarter of the descriptors that this process may have."""
    return max(1, _limit() // 4)


def is_reserved(fd: int) -> bool:
    """Whether a connection's descriptor is one of the last that this process may have. The system gives the
    lowest free number, so all below it are in use."""
    limit = _limit()
    return fd >= limit - min(RESERVE, limit // 8)


def descriptor_hint() -> str:
    """What to do where there are no more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = f"now {_said(soft)}, hard limit {_said(hard)}"
    return f"raise the limit (ulimit -n, {limits}), or close sockets that are not needed"


def raise_descriptor_limit() -> tuple[int, int] | None:
    """This process may have as many descriptors as the hard limit says: the usual soft one is for programs
    that call select(). (before, now), or None where nothing changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the system allows no process as many
        return None
    return soft, hard


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft


def _said(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)
