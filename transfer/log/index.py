"""Where the messages of a topic lie: for each segment the positions of its records, in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque

from transfer.log.ranges import Ranges


class Topic:
    """A topic of the log. begin: the offset of its oldest message that is there. end: that of the next one.
    groups: the offset before which each has acknowledged. discarded: offsets whose blobs are not needed any
    more. Not thread-safe, but for looking into `discarded`.
    """

    __slots__ = ("_firsts", "_runs", "discarded", "end", "groups", "name", "number")

    def __init__(self, name: str, number: int, end: int = 0) -> None:
        self.name = name
        self.number = number
        self.end = end
        self.groups: dict[str, int] = {}
        self.discarded = Ranges()
        #: (first sequence of the segment, positions of its records), and the offset that each begins with
        self._runs: deque[tuple[int, array[int]]] = deque()
        self._firsts: deque[int] = deque()

    @property
    def begin(self) -> int:
        return self._firsts[0] if self._firsts else self.end

    def add(self, segment: int, position: int) -> None:
        """One message more, at `position` of the segment."""
        if not self._runs or self._runs[-1][0] != segment:
            self._runs.append((segment, array("I")))
            self._firsts.append(self.end)
        self._runs[-1][1].append(position)
        self.end += 1

    def skip_to(self, offset: int) -> None:
        """The next message has this offset, if nothing of the topic is kept."""
        if not self._runs:
            self.end = max(self.end, offset)

    def discard(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The blobs of these messages are not needed any more. The ranges that are new by it, at most two,
        and behind them (begin, 0) for each that went up in them.
        """
        before = dict(self.discarded)
        # What is gone counts as discarded, so that the ranges stay few.
        self.discarded = self.discarded.joined(begin, end).joined(0, self.begin)
        now = dict(self.discarded)
        news = [(low, high) for low, high in now.items() if before.get(low) != high]
        return news + [(low, 0) for low in before if low not in now]

    def find(self, offset: int) -> tuple[int, int]:
        """(segment, position) of a message between `begin` and `end`."""
        run = bisect_right(self._firsts, offset) - 1
        segment, positions = self._runs[run]
        return segment, positions[offset - self._firsts[run]]

    def forget(self, segment: int) -> None:
        """The segment, the oldest of all, is gone."""
        if self._runs and self._runs[0][0] == segment:
            self._runs.popleft()
            self._firsts.popleft()
