"""What is done for many things at once, without holding up all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class InTurns(Generic[T]):
    """Does the same for many things, for `at_once` of them in each turn of the loop. On the loop.

    soon: calls something in its next turn.
    """

    def __init__(
        self, soon: Callable[[Callable[[], None]], object], at_once: int, do: Callable[[T], object]
    ) -> None:
        self._soon = soon
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

    def clear(self) -> None:
        """It is not done for those that wait."""
        self._waiting.clear()

    def _do_some(self) -> None:
        self._due = False
        try:
            for thing in list(islice(self._waiting, self._at_once)):
                self._waiting.pop(thing, None)
                self._do(thing)
        finally:
            if self._waiting and not self._due:
                self._due = True
                self._soon(self._do_some)
