"""The places of a topic's messages: runs of offsets, each with its records' positions in a segment."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from transfer.log.ranges import Ranges

if TYPE_CHECKING:
    from transfer.log.segment import Segment


class LostPositions(Sequence[int]):
    """Positions of lost messages: each reads as damaged, as no record begins at byte 1."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> LostPositions: ...

    def __getitem__(self, at: int | slice) -> int | LostPositions:
        if isinstance(at, slice):
            return LostPositions(len(range(*at.indices(self._count))))
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return 1


class OffsetRun:
    """Messages of one topic with consecutive offsets, in one segment. It only grows at the end.

    topic: its number. segment: the first sequence of the segment. first: the first message's offset.
    positions: where the records begin in the segment's file.
    """

    __slots__ = ("first", "positions", "segment", "topic")

    def __init__(self, topic: int, segment: int, first: int, positions: Sequence[int]) -> None:
        self.topic = topic
        self.segment = segment
        self.first = first
        self.positions = positions

    @property
    def end(self) -> int:
        return self.first + len(self.positions)

    def part(self, begin: int, end: int) -> OffsetRun:
        """Returns the messages from offset `begin` to `end`; for all, the run itself, which may grow."""
        if (begin, end) == (self.first, self.end):
            return self
        return OffsetRun(
            self.topic, self.segment, begin, self.positions[begin - self.first : end - self.first]
        )


class Use(NamedTuple):
    """A topic's use of a segment's blobs: the offset and the byte after the last one, and the newest time."""

    offsets: int
    nbytes: int
    newest: int

    def joined(self, other: Use) -> Use:
        """Returns the union of both."""
        return Use(*map(max, self, other))


#: by the segment of the blobs and the topic's number
Uses = dict[tuple[int, int], Use]


class LogTopic:
    """A topic of the log. Not thread-safe, except for reading `discarded`.

    begin: the offset of its oldest message. end: that of the next new one. groups: the offset before which
    each group has acknowledged all messages. discarded: offsets whose blobs are discarded.
    """

    __slots__ = (
        "_firsts",
        "_growing",
        "_home",
        "_runs",
        "discarded",
        "end",
        "groups",
        "name",
        "number",
    )

    def __init__(self, name: str, number: int, end: int = 0) -> None:
        self.name = name
        self.number = number
        self.end = end
        self.groups: dict[str, int] = {}
        self.discarded = Ranges()
        #: by offset, without gaps; and the offset that each begins with
        self._runs: list[OffsetRun] = []
        self._firsts: list[int] = []
        #: the positions of the last run, as long as the segment `_home` takes records
        self._growing: array[int] = array("I")
        self._home = -1

    @property
    def begin(self) -> int:
        return self._firsts[0] if self._firsts else self.end

    @property
    def runs(self) -> Sequence[OffsetRun]:
        """The runs of its messages, by offset, without gaps."""
        return self._runs

    def add(self, home: Segment, position: int) -> None:
        """Adds a message at `position` of the segment."""
        if self._home != home.first:
            self._grow_in(home)
        self._growing.append(position)
        self.end += 1

    def extend(self, home: Segment, positions: Sequence[int]) -> None:
        """Adds messages at these positions of the segment."""
        if self._home != home.first and positions:
            self._grow_in(home)
        self._growing.extend(positions)
        self.end += len(positions)

    def _grow_in(self, home: Segment) -> None:
        self._growing, self._home = array("I"), home.first
        run = OffsetRun(self.number, home.first, self.end, self._growing)
        home.runs.append(run)
        self._runs.append(run)
        self._firsts.append(self.end)

    def place(self, runs: Iterable[OffsetRun], end: int = 0, *, last: int | None = None) -> list[OffsetRun]:
        """Sets the places of its messages. If several runs have an offset, the last of these counts.

        end: the offset of the next message, if it is higher than the last run's end.
        last: the last segment, if missing messages in the middle or at the end are lost: they are placed as
        lost, and returned. None: messages before missing ones are dropped.
        """
        kept: list[OffsetRun] = []
        covered = Ranges()
        for run in reversed(list(runs)):
            kept += [run.part(low, high) for low, high in covered.missing(run.first, run.end)]
            covered = covered.joined(run.first, run.end)
        kept.sort(key=lambda run: run.first)
        self.end = max(self.end, end, kept[-1].end if kept else 0)
        lost = self._missing(kept, last) if last is not None else []
        kept = sorted([*kept, *lost], key=lambda run: run.first)
        follows, whole = self.end, len(kept)
        while whole and kept[whole - 1].end == follows:
            whole -= 1
            follows = kept[whole].first
        self._set(kept[whole:])
        return lost

    def _missing(self, kept: Sequence[OffsetRun], last: int) -> list[OffsetRun]:
        """Returns the messages missing after the first run, each with the segment of the next run."""
        lost: list[OffsetRun] = []
        for at, run in enumerate(kept):
            end, segment = (
                (kept[at + 1].first, kept[at + 1].segment) if at + 1 < len(kept) else (self.end, last)
            )
            if run.end < end:
                lost.append(OffsetRun(self.number, segment, run.end, LostPositions(end - run.end)))
        return lost

    def move(self, runs: Sequence[OffsetRun]) -> None:
        """Changes the places of these runs' messages, if they still exist."""
        self.place([*self._runs, *(one for run in runs for one in self._still_there(run))])

    def _still_there(self, run: OffsetRun) -> list[OffsetRun]:
        begin = max(run.first, self.begin)
        return [run.part(begin, run.end)] if begin < run.end else []

    def grow_on(self, home: Segment, its: Collection[OffsetRun]) -> None:
        """Continues the last run if it is one of the segment's (`its`, a set, as they may be very many)."""
        last = self._runs[-1] if self._runs else None
        if last is not None and isinstance(last.positions, array) and last in its:
            self._growing, self._home = last.positions, home.first

    def _set(self, runs: list[OffsetRun]) -> None:
        self._runs = runs
        self._firsts = [run.first for run in runs]
        if not runs or runs[-1].positions is not self._growing:
            self._home = -1

    def discard(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Discards the blobs of these messages.
        Returns the new ranges, at most two, then (begin, 0) for each range that is merged into them."""
        before = dict(self.discarded)
        # Removed messages count as discarded, so that the ranges stay few.
        self.discarded = self.discarded.joined(begin, end).joined(0, self.begin)
        now = dict(self.discarded)
        news = [(low, high) for low, high in now.items() if before.get(low) != high]
        return news + [(low, 0) for low in before if low not in now]

    def find(self, offset: int) -> tuple[int, int]:
        """Returns (segment, position) of a message between `begin` and `end`."""
        run = self._runs[bisect_right(self._firsts, offset) - 1]
        return run.segment, run.positions[offset - run.first]

    def kept(self, place: tuple[int, int]) -> int:
        """Returns the offset of the first message from this place (last segment, position) on, or `end`."""
        end = self.end
        for run in reversed(self._runs):
            if run.segment != place[0]:
                break
            end = run.first + bisect_left(run.positions, place[1])
            if end > run.first:
                break
        return end

    def parts(self, begin: int, end: int) -> Iterator[OffsetRun]:
        """Yields the existing messages with these offsets, as runs."""
        for at in range(max(0, bisect_right(self._firsts, begin) - 1), len(self._runs)):
            run = self._runs[at]
            low, high = max(begin, run.first), min(end, run.end)
            if low < high:
                yield run.part(low, high)

    def forget(self, segment: int) -> None:
        """Removes the messages of a removed segment, and all older ones of the topic."""
        gone = [at for at, run in enumerate(self._runs) if run.segment == segment]
        if gone:
            self._set(self._runs[gone[-1] + 1 :])
