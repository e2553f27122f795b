"""Pauses between attempts: they double up to a limit, and each is a random part of the doubled time.

With a random pause over the full range ("full jitter"), a thousand clients of a restarted server do not
reconnect in waves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

#: a generator of this module: a program that seeds or checks the global one is not affected
_RANDOM = Random()


class Backoff:
    """Returns the next pause, in seconds. Not thread-safe.

    first: the first pause is a random time up to this. limit: no pause is longer; 0 or less than
    `first`: the pauses do not grow. draw: returns a number from 0 to 1.
    """

    __slots__ = ("_draw", "_range", "first", "limit")

    def __init__(self, first: float, limit: float, draw: Callable[[], float] = _RANDOM.random) -> None:
        self.first = max(0.0, first)
        self.limit = max(self.first, limit)
        self._draw = draw
        self._range = self.first

    def next(self) -> float:
        """The pause before the next attempt."""
        pause = self._range * self._draw()
        self._range = min(self.limit, self._range * 2)
        return pause

    def lasted(self, seconds: float) -> None:
        """A connection that lasted this long was lost: after a long one the pauses start short again. A peer
        that accepts a connection and drops it at once gets growing pauses."""
        if seconds >= self.limit:
            self._range = self.first
