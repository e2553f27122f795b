"""Gives the disk space of discarded blobs back, by punching holes into their files."""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from transfer.log.index import LogTopic
from transfer.log.record import BLOB, RecordFlag, decode
from transfer.log.segment import PAGE, Segment, aligned

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CANNOT = (errno.EOPNOTSUPP, errno.ENOSYS)


class Hole(NamedTuple):
    """A blob whose room can be freed."""

    segment: Segment
    position: int
    nbytes: int


class HolePlace(NamedTuple):
    """The place of a message's record whose blob, if it has one, can be freed."""

    memory: memoryview
    position: int


class Due(NamedTuple):
    """The room that can be freed now; see `Holes.due`."""

    places: list[HolePlace]
    segments: Mapping[int, Segment]
    holes: list[Hole]


class Holes:
    """The discarded blobs whose room is not free yet. Use it with the journal's lock, except `give_back`.

    A blob's room is freed when the record that discards it is synced, and when the blob has no views: they
    would read zeros. On a file system without holes no room is freed.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[int, LogTopic, int, int]] = deque()
        self._viewed: list[Hole] = []

    @property
    def pending(self) -> bool:
        """Whether blobs wait for the sync of their record."""
        return bool(self._pending)

    def add(self, sequence: int, topic: LogTopic, begin: int, end: int) -> None:
        """Frees the blobs of these messages when record `sequence` is synced."""
        self._pending.append((sequence, topic, begin, end))

    def due(self, synced: int, segments: Iterable[Segment], *, again: bool = False) -> Due:
        """Returns the room that can be freed when all records before `synced` are synced.

        The caller frees it with `give_back`, and passes the rest to `keep`. again: includes blobs that had
        views before.
        """
        due = Due([], {segment.first: segment for segment in segments}, [])
        while self._pending and self._pending[0][0] < synced:
            _, topic, begin, end = self._pending.popleft()
            for run in topic.parts(begin, end):
                segment = due.segments.get(run.segment)
                if segment is not None and segment.has_blobs_of(topic.number):
                    due.places.extend(HolePlace(segment.memory, position) for position in run.positions)
        if again:
            due.holes.extend(self._viewed)
            self._viewed.clear()
        return due

    def keep(self, left: Iterable[Hole]) -> None:
        """Keeps holes that could not be made yet, for a later try."""
        self._viewed.extend(left)


def give_back(due: Due) -> list[Hole]:
    """Makes the holes; returns those that could not be made yet. Needs no lock."""
    holes = due.holes
    for memory, position in due.places:
        record = decode(memory, position, verify=False)
        if record is not None and record.flags & RecordFlag.HAS_BLOB:
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
                # A full disk may have no room for the file's metadata, for instance: try again later.
                left += [
                    hole for hole in free if begin <= hole.position + hole.nbytes and hole.position < end
                ]
    return left


def _spans(holes: Iterable[Hole]) -> list[tuple[int, int]]:
    """Returns the whole pages of adjacent blobs; the padding bytes between them are unused."""
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
    """Makes a hole in a file: the bytes read as zeros and take no room. Raises OSError."""
    fallocate = _fallocate()
    if fallocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, begin, nbytes):
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Any:
    """Returns the C library's fallocate with 64-bit positions; None: it has none."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_int
    return function
