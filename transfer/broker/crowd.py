"""Those at a door who did not say yet who they are, or what they want. On the broker's loop."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

G = TypeVar("G")


class Crowd(Generic[G]):
    """Puts out whoever takes longer than `patience` seconds, and the oldest when there are more than `most`,
    so that those who say nothing keep nobody out.

    put_out: ends one of them, and takes it out by `remove`; with the word `late`, or "crowded". most: at most
    a quarter of the descriptors that this process may have.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        put_out: Callable[[G, str], object],
        *,
        patience: float,
        most: int,
        late: str = "late",
    ) -> None:
        self.most = most_unfinished(most)
        self._loop = loop
        self._put_out = put_out
        self._patience = patience
        self._late = late
        self._timers: dict[G, asyncio.TimerHandle] = {}  # of the oldest first

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, guest: G) -> bool:
        return guest in self._timers

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._timers))

    def add(self, guest: G) -> None:
        """One more, for whom another one may have to go."""
        self._timers[guest] = self._loop.call_later(self._patience, self._put_out, guest, self._late)
        if len(self._timers) > self.most:
            self._put_out(next(iter(self._timers)), "crowded")

    def remove(self, guest: G) -> bool:
        """It is no longer one of them; False: it was none."""
        timer = self._timers.pop(guest, None)
        if timer is not None:
            timer.cancel()
        return timer is not None


def most_unfinished(wished: int) -> int:
    """How many connections may be unfinished at once: of this process's descriptors enough are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wished if soft == resource.RLIM_INFINITY else max(1, min(wished, soft // 4))
