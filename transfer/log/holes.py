"""The room of blobs that are not needed any more, given back to the disk."""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from transfer.log.index import Topic
from transfer.log.record import BLOB, Flag, decode
from transfer.log.segment import PAGE, Segment, aligned

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS)


class Hole(NamedTuple):
    """A blob whose room is given back."""

    segment: Segment
    position: int
    nbytes: int


class Place(NamedTuple):
    """Where the record of a message is whose blob, if it has one, is given back."""

    memory: memoryview
    position: int


class Due(NamedTuple):
    """What can be given back now; see `Holes.due`."""

    places: list[Place]
    segments: Mapping[int, Segment]
    holes: list[Hole]


class Holes:
    """Which blobs are to be given back, and when. To be used with the journal's lock, but for `give_back`.

    A blob is given back when the record that tells it is synced, and when nobody has a view of it: whoever
    has would read zeros. Where the file system cannot, nothing is.
    """

    def __init__(self) -> None:
        self._asked: deque[tuple[int, Topic, int, int]] = deque()
        self._viewed: list[Hole] = []

    @property
    def asked(self) -> bool:
        """True if there are some whose record was not synced when they were looked at last."""
        return bool(self._asked)

    def ask(self, sequence: int, topic: Topic, begin: int, end: int) -> None:
        """The blobs of these messages can go when record `sequence` is synced."""
        self._asked.append((sequence, topic, begin, end))

    def due(self, synced: int, segments: Iterable[Segment], *, again: bool = False) -> Due:
        """What can be given back when all before record `synced` is. again: what was viewed, too.

        It is for the caller to give it back, and to `keep` what is left.
        """
        due = Due([], {segment.first: segment for segment in segments}, [])
        while self._asked and self._asked[0][0] < synced:
            _, topic, begin, end = self._asked.popleft()
            for run in topic.parts(begin, end):
                segment = due.segments.get(run.segment)
                if segment is not None and segment.has_blobs_of(topic.number):
                    due.places.extend(Place(segment.memory, position) for position in run.positions)
        if again:
            due.holes.extend(self._viewed)
            self._viewed.clear()
        return due

    def keep(self, left: Iterable[Hole]) -> None:
        """Is tried again later."""
        self._viewed.extend(left)


def give_back(due: Due) -> list[Hole]:
    """Makes the holes; those that could not be made yet. Needs no lock."""
    holes = due.holes
    for memory, position in due.places:
        record = decode(memory, position, verify=False)
        if record is not None and record.flags & Flag.HAS_BLOB:
            first, begin, nbytes, _ = BLOB.unpack_from(record.body)
            if nbytes and first in due.segments:
                holes.append(Hole(due.segments[first], begin, nbytes))
    by_segment: dict[int, list[Hole]] = {}
    for hole in holes:
        by_segment.setdefault(hole.segment.first, []).append(hole)
    left: list[Hole] = []
    for some in by_segment.values():
        some.sort(key=lambda hole: hole.position)
        left += _give_back(some[0].segment, some)
    return left


def _give_back(segment: Segment, holes: Sequence[Hole]) -> list[Hole]:
    with segment.punching() as (fd, viewed):
        if fd < 0:
            return []
        left: list[Hole] = []
        free: list[Hole] = []
        for hole in holes:
            (left if hole.position in viewed else free).append(hole)
        for begin, end in _spans(free):
            try:
                punch(fd, begin, end - begin)
            except OSError as error:
                if error.errno in _CANNOT:
                    return []
                # No room for what the system writes down of it, for instance: it is only tried again.
                left += [
                    hole for hole in free if begin <= hole.position + hole.nbytes and hole.position < end
                ]
    return left


def _spans(holes: Iterable[Hole]) -> list[tuple[int, int]]:
    """The whole pages in blobs that lie one behind the other; the bytes between them are nobody's."""
    spans: list[tuple[int, int]] = []
    for hole in holes:
        end = hole.position + hole.nbytes
        if spans and aligned(spans[-1][1]) == hole.position:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((hole.position, end))
    pages = ((-(-begin // PAGE) * PAGE, end // PAGE * PAGE) for begin, end in spans)
    return [(begin, end) for begin, end in pages if begin < end]


def punch(fd: int, begin: int, nbytes: int) -> None:
    """These bytes of a file read as zeros and take no room; its size stays. Raises OSError."""
    fallocate = _fallocate()
    if fallocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, begin, nbytes):
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Any:
    """The C library's function with 64-bit positions; None: it has none."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_int
    return function
