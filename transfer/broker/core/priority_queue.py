"""Whose message is next: classes of priority that share by weight, in order within each. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from transfer.transports.errors import OptionError

#: the classes of priority and their shares while all of them have something waiting
WEIGHTS: Mapping[str, int] = {"operator": 8, "high": 4, "normal": 2, "bulk": 1}
#: the class of a message that names none
DEFAULT_CLASS = "normal"
_NAMES = {"critical": "operator", "urgent": "operator", "low": "bulk"}
#: stale entries that a class may hold before it is made anew
_SLACK = 64


def class_of(priority: object) -> str:
    """The class that a `priority` header means: a class's name, or a number 0 to 9, of which 4 is normal.

    Anything else is normal: a header that somebody else understands is no error.
    """
    if isinstance(priority, str):
        word = priority.strip().lower()
        if word in WEIGHTS:
            return word
        if word in _NAMES:
            return _NAMES[word]
        priority = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None
    if isinstance(priority, bool) or not isinstance(priority, int | float) or priority != priority:
        return DEFAULT_CLASS
    if priority >= 8:
        return "operator"
    if priority >= 6:
        return "high"
    return DEFAULT_CLASS if priority >= 3 else "bulk"


class _Class:
    """One class: numbers that wait, the smallest first. credit: what it is owed."""

    __slots__ = ("credit", "heap", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.credit = 0
        self.heap: list[int] = []
        self.waiting: set[int] = set()

    def put(self, number: int) -> None:
        self.waiting.add(number)
        heapq.heappush(self.heap, number)
        if len(self.heap) > 2 * len(self.waiting) + _SLACK:
            self.heap = sorted(self.waiting)

    def take(self) -> int:
        while True:
            number = heapq.heappop(self.heap)
            if number in self.waiting:
                self.waiting.discard(number)
                return number


class PriorityQueue:
    """Numbers of messages that wait for one consumer. Not thread-safe.

    A number is higher the later its message came; within a class the lowest is next, so a message that
    comes back takes its old place, and what one producer sent in one class stays in order. Between
    classes the weights decide, evenly spread ("smooth" weighted round robin): of `sum(weights)` messages
    taken while all classes wait, each has its weight; no class waits for ever.
    """

    def __init__(self, weights: Mapping[str, int] = WEIGHTS) -> None:
        if not weights or any(weight < 1 for weight in weights.values()):
            raise OptionError(f"weights {dict(weights)}", hint="a whole number from 1 on for each class")
        self._classes = {name: _Class(weight) for name, weight in weights.items()}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """All numbers, class by class, in order."""
        for one in self._classes.values():
            yield from sorted(one.waiting)

    def put(self, number: int, name: str) -> None:
        """Waits in class `name`, one of the weights' (KeyError). The same twice is harmless."""
        one = self._classes[name]
        if number not in one.waiting:
            one.put(number)
            self._length += 1

    def discard(self, number: int, name: str) -> bool:
        """False: it was not waiting there."""
        one = self._classes[name]
        if number not in one.waiting:
            return False
        one.waiting.discard(number)
        self._length -= 1
        return True

    def take(self) -> int | None:
        """The next one, which waits no more. None: nothing waits."""
        best: _Class | None = None
        total = 0
        for one in self._classes.values():
            if not one.waiting:
                one.credit = 0
                continue
            total += one.weight
            one.credit += one.weight
            if best is None or one.credit > best.credit:
                best = one
        if best is None:
            return None
        best.credit -= total
        self._length -= 1
        return best.take()
