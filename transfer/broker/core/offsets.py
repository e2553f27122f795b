"""A set of offsets, stored as ranges: with few gaps, many offsets take little memory. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


class Offsets:
    """A set of offsets in ranges [begin, end) that neither overlap nor touch. Not thread-safe.

    `log.ranges.Ranges` is immutable and would be copied for each message. Adding costs time linear in the
    ranges after the place, lookup is logarithmic. `len` counts offsets.
    """

    __slots__ = ("_begins", "_count", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._begins, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterates over the ranges, in order."""
        return zip(self._begins, self._ends, strict=True)

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self._begins)

    def add(self, offset: int) -> None:
        """Adds an offset. Idempotent."""
        begins, ends = self._begins, self._ends
        at = bisect_right(begins, offset)
        if at and offset < ends[at - 1]:
            return
        self._count += 1
        joins_next = at < len(begins) and begins[at] == offset + 1
        if at and ends[at - 1] == offset:
            ends[at - 1] = offset + 1
            if joins_next:
                ends[at - 1] = ends.pop(at)
                del begins[at]
        elif joins_next:
            begins[at] = offset
        else:
            begins.insert(at, offset)
            ends.insert(at, offset + 1)

    def behind(self, offset: int) -> int:
        """Returns the first offset from this one on that is not in the set."""
        at = bisect_right(self._begins, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def drop_before(self, offset: int) -> None:
        """Removes the offsets before this one, which does not lie within a range."""
        at = bisect_right(self._begins, offset)
        self._count -= sum(self._ends[:at]) - sum(self._begins[:at])
        del self._begins[:at], self._ends[:at]
