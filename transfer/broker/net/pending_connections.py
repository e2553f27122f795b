"""Connections of a listener that have not authenticated, or sent a request, yet. On the broker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from transfer.transports.connect.pending import PENDING

G = TypeVar("G")


class PendingConnections(Generic[G]):
    """Evicts a connection after `patience` seconds, and the oldest if there are more than `most`.

    So silent connections do not block others. A limit of the process applies too (see `PENDING`).

    evict: closes a connection, and takes it out by `remove`; its reason is "late" or "crowded". It returns
    False if the connection is no longer pending, and stays. patience: None: no limit of time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        evict: Callable[[G, str], object],
        *,
        patience: float | None,
        most: int,
    ) -> None:
        self.most = most
        self._loop = loop
        self._evict = evict
        self._patience = patience
        self._timers: dict[G, asyncio.TimerHandle | None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, pending: G) -> bool:
        return pending in self._timers

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._timers))

    def add(self, pending: G) -> None:
        """Adds a connection, for which it may evict another one."""
        timer = None
        if self._patience is not None:
            timer = self._loop.call_later(self._patience, self._evict, pending, "late")
        self._timers[pending] = timer
        PENDING.add(pending, partial(self._evict_threadsafe, pending))
        if len(self._timers) > self.most:
            self.evict_oldest()
        PENDING.trim(self.most)

    def remove(self, pending: G) -> bool:
        """Removes a connection. Returns whether it was pending."""
        if pending not in self._timers:
            return False
        timer = self._timers.pop(pending)
        if timer is not None:
            timer.cancel()
        PENDING.remove(pending)
        return True

    def evict_oldest(self) -> bool:
        """Evicts the oldest one. Returns False if it stays, or there is none."""
        oldest = next(iter(self._timers), None)
        return oldest is not None and self._evict(oldest, "crowded") is not False

    def _evict_threadsafe(self, pending: G) -> None:
        """Evicts a connection in favour of one at another listener. Any thread."""
        with suppress(RuntimeError):  # the loop has ended, and with it all connections
            self._loop.call_soon_threadsafe(self._evict_if_pending, pending)

    def _evict_if_pending(self, pending: G) -> None:
        if pending in self._timers:
            self._evict(pending, "crowded")
