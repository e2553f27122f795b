"""Sets of offsets, as merged ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """An immutable set of offsets, as ranges [begin, end) that neither overlap nor touch.
    Any thread may read it without a lock. Joining takes time proportional to the number of ranges."""

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
        """Returns the parts of [begin, end) that are not in the set."""
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
        """Returns the union with [begin, end)."""
        if begin >= end:
            return self
        low, high = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if low < high:
            begin, end = min(begin, self._begins[low]), max(end, self._ends[high - 1])
        return Ranges(
            (*self._begins[:low], begin, *self._begins[high:]), (*self._ends[:low], end, *self._ends[high:])
        )


def consecutive(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Groups ordered offsets into ranges [begin, end) of consecutive ones."""
    begin = end = None
    for offset in offsets:
        if begin is None or offset != end:
            if begin is not None and end is not None:
                yield begin, end
            begin = offset
        end = offset + 1
    if begin is not None and end is not None:
        yield begin, end
