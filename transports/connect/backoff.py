"""Pauses between attempts: they double up to a limit, and each is a random part of that.

With the full range random ("full jitter"), a thousand clients whose server restarted do not come
back in waves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

#: of our own: a program that seeds or checks the global one sees nothing of us
_RANDOM = Random()


class Backoff:
    """Gives the next pause, in seconds. Not thread-safe.

    first: the first pause is a random time up to this. limit: no pause is longer; 0 or less than
    `first`: the pauses do not grow. draw: gives a number from 0 to 1.
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
        """A connection was lost that stood so long: begins with short pauses again if the peer is well.
        One that takes us and drops us at once is not, and the pauses go on growing."""
        if seconds >= self.limit:
            self._range = self.first
