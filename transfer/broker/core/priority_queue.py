"""A queue with classes of priority that share by weight, in order within each class. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from transfer.transports.errors import OptionError

#: the classes of priority and their weights, which apply while all classes have messages
WEIGHTS: Mapping[str, int] = {"operator": 8, "high": 4, "normal": 2, "bulk": 1}
#: the class of a message without a priority
DEFAULT_CLASS = "normal"
_NAMES = {"critical": "operator", "urgent": "operator", "low": "bulk"}
#: stale entries that a class may hold before its heap is rebuilt
_SLACK = 64


def class_of(priority: object) -> str:
    """Returns the class of a `priority` header: a class's name, or a number 0 to 9, of which 4 is normal.
    Anything else is normal: a header that only other programs understand is no error."""
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
    """One class: numbers that wait, the smallest first. credit: of the weighted round robin."""

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

    Later messages have higher numbers, and within a class the lowest is next. So a message that comes back
    takes its old place, and the messages of one producer in one class stay in order. Between classes a smooth
    weighted round robin decides: of `sum(weights)` messages taken while all classes wait, each class has its
    weight; no class starves.
    """

    def __init__(self, weights: Mapping[str, int] = WEIGHTS) -> None:
        if not weights or any(weight < 1 for weight in weights.values()):
            raise OptionError(
                f"weights {dict(weights)}", hint="each class needs a whole number of at least 1"
            )
        self._classes = {name: _Class(weight) for name, weight in weights.items()}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Iterates over all numbers, class by class, in order."""
        for one in self._classes.values():
            yield from sorted(one.waiting)

    def put(self, number: int, name: str) -> None:
        """Adds a number to class `name`. Idempotent. Raises KeyError: no such class."""
        one = self._classes[name]
        if number not in one.waiting:
            one.put(number)
            self._length += 1

    def discard(self, number: int, name: str) -> bool:
        """Removes a number. Returns False if it was not waiting there."""
        one = self._classes[name]
        if number not in one.waiting:
            return False
        one.waiting.discard(number)
        self._length -= 1
        return True

    def take(self) -> int | None:
        """Removes and returns the next number, or None."""
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
