"""Those at a door who did not say yet who they are, or what they want. On the broker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from transfer.transports.connect.pending import PENDING

G = TypeVar("G")


class PendingConnections(Generic[G]):
    """Puts out whoever takes longer than `patience` seconds, and the oldest when there are more than `most`,
    so that those who say nothing keep nobody out. They count for the whole process, too (see `PENDING`).

    put_out: ends one of them, and takes it out by `remove`; with the word "late", or "crowded". It returns
    False if that one has meanwhile shown what it wants, and stays. patience: None: as long as there is room.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        put_out: Callable[[G, str], object],
        *,
        patience: float | None,
        most: int,
    ) -> None:
        self.most = most
        self._loop = loop
        self._put_out = put_out
        self._patience = patience
        self._timers: dict[G, asyncio.TimerHandle | None] = {}  # of the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, guest: G) -> bool:
        return guest in self._timers

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._timers))

    def add(self, guest: G) -> None:
        """One more, for whom another one may have to go."""
        timer = None
        if self._patience is not None:
            timer = self._loop.call_later(self._patience, self._put_out, guest, "late")
        self._timers[guest] = timer
        PENDING.add(guest, partial(self._evict, guest))
        if len(self._timers) > self.most:
            self.put_out_oldest()
        PENDING.trim(self.most)

    def remove(self, guest: G) -> bool:
        """It is no longer one of them; False: it was none."""
        if guest not in self._timers:
            return False
        timer = self._timers.pop(guest)
        if timer is not None:
            timer.cancel()
        PENDING.remove(guest)
        return True

    def put_out_oldest(self) -> bool:
        """The oldest one makes room; False: it did not, or there is none."""
        oldest = next(iter(self._timers), None)
        return oldest is not None and self._put_out(oldest, "crowded") is not False

    def _evict(self, guest: G) -> None:
        """It makes room for one at another door. Any thread."""
        with suppress(RuntimeError):  # the loop has ended, and all of them with it
            self._loop.call_soon_threadsafe(self._make_room, guest)

    def _make_room(self, guest: G) -> None:
        if guest in self._timers:
            self._put_out(guest, "crowded")
