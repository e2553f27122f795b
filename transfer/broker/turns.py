"""Work on many items, in turns of the loop, without blocking other work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

#: seconds of the loop that one kind of work takes before others get their turn
TURN_SECONDS = 0.004
#: turns of the loop that others get then: an answer takes several, and would wait for a long one each time
OTHERS = 4


def call_after_turns(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object, turns: int = OTHERS
) -> None:
    """Calls a function after some turns of the loop; they cost next to nothing if other work is idle."""
    if turns:
        loop.call_soon(lambda: call_after_turns(loop, call, *arguments, turns=turns - 1))
    else:
        call(*arguments)


class InTurns(Generic[T]):
    """Calls `do` for many items: for `at_once` of them, and at most TURN_SECONDS, before others get their
    turn. On the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_once: int, do: Callable[[T], object]) -> None:
        self._loop = loop
        self._at_once = at_once
        self._do = do
        self._waiting: dict[T, None] = {}
        self._due = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, things: Iterable[T]) -> None:
        """Adds items: some are done now, unless others wait; each of the rest, once, in the next turns."""
        self._waiting.update(dict.fromkeys(things))
        if not self._due:
            self._do_some()

    def add_later(self, thing: T) -> None:
        """Adds an item that is done in a later turn."""
        self._waiting[thing] = None
        self._go_on()

    def clear(self) -> None:
        """Drops all items that wait."""
        self._waiting.clear()

    def _do_some(self) -> None:
        self._due = True  # items that `do` adds wait for a later turn
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
