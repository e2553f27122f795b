"""Sets of offsets as ranges that are merged. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Offsets, as ranges [begin, end) that neither overlap nor touch. It never changes, so any thread may
    look into it without a lock. Joining takes time by the number of ranges.
    """

    __slots__ = ("_begins", "_ends")

    def __init__(self, begins: tuple[int, ...] = (), ends: tuple[int, ...] = ()) -> None:
        self._begins = begins
        self._ends = ends

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def __len__(self) -> int:
        return len(self._begins)

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts of [begin, end) that are not in it."""
        found = []
        for at in range(bisect_right(self._ends, begin), len(self._begins)):
            if self._begins[at] >= end:
                break
            if begin < self._begins[at]:
                found.append((begin, self._begins[at]))
            begin = self._ends[at]
        if begin < end:
            found.append((begin, end))
        return found

    def joined(self, begin: int, end: int) -> Ranges:
        """These and [begin, end)."""
        if begin >= end:
            return self
        low, high = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if low < high:
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        return Ranges(
            (*self._begins[:low], begin, *self._begins[high:]), (*self._ends[:low], end, *self._ends[high:])
        )


def consecutive(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Offsets in order, as ranges [begin, end) of those that follow each other."""
    begin = end = None
    for offset in offsets:
        if begin is None or offset != end:
            if begin is not None and end is not None:
                yield begin, end
            begin = offset
        end = offset + 1
    if begin is not None and end is not None:
        yield begin, end
