"""What is done for many things at once, without holding up all else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

#: seconds of the loop that one kind of work takes before it is the turn of others
TURN_SECONDS = 0.004
#: turns of the loop that others have then: an answer takes several, and would wait for a long one each time
OTHERS = 4


def call_after_turns(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object, turns: int = OTHERS
) -> None:
    """Calls it after some turns of the loop, which cost next to nothing if others have nothing to do."""
    if turns:
        loop.call_soon(lambda: call_after_turns(loop, call, *arguments, turns=turns - 1))
    else:
        call(*arguments)


class InTurns(Generic[T]):
    """Does the same for many things: for `at_once` of them, and no longer than TURN_SECONDS, before it is the
    turn of others. On the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_once: int, do: Callable[[T], object]) -> None:
        self._loop = loop
        self._at_once = at_once
        self._do = do
        self._waiting: dict[T, None] = {}
        self._due = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, things: Iterable[T]) -> None:
        """It is done for some of them now, unless others wait; for each of the rest, once, in the next
        turns."""
        self._waiting.update(dict.fromkeys(things))
        if not self._due:
            self._do_some()

    def add_later(self, thing: T) -> None:
        """It is done in a later turn."""
        self._waiting[thing] = None
        self._go_on()

    def clear(self) -> None:
        """It is not done for those that wait."""
        self._waiting.clear()

    def _do_some(self) -> None:
        self._due = True  # what `do` adds waits for a later turn
        ends = monotonic() + TURN_SECONDS
        try:
            for number in range(min(self._at_once, len(self._waiting))):
                if not self._waiting or (number and monotonic() >= ends):
                    break
                thing = next(iter(self._waiting))
                del self._waiting[thing]
                self._do(thing)
        finally:
            self._due = False
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            call_after_turns(self._loop, self._do_some)
