"""Reads a message's large payload in ranges: only the ranges that are read take memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from transfer.log.index import LogTopic
from transfer.log.message import record_at
from transfer.log.record import BLOB, RecordFlag
from transfer.log.segment import Segment

_HAS_BLOB = int(RecordFlag.HAS_BLOB)


class BlobPlace(NamedTuple):
    """The place of a message's blob. begin: offset in the segment's blob file."""

    topic: LogTopic
    offset: int
    segment: Segment
    begin: int
    nbytes: int
    crc: int


class BlobReader:
    """The blob of one message; `Log.blob_at` makes it. Thread-safe. Does not keep the message in the log.

    nbytes, crc: of the whole blob. `view` checks nothing: a caller that reads the whole blob compares the
    CRC-32C.
    """

    def __init__(self, place: BlobPlace, find: Callable[[], BlobPlace | None]) -> None:
        self.nbytes = place.nbytes
        self.crc = place.crc
        self._place = place
        self._find = find

    def view(self, begin: int, end: int) -> memoryview | None:
        """Returns a read-only view of these bytes, which stays valid if the message is removed.
        None: the message is removed, or its file is truncated. Raises LogDamaged, Closed."""
        view = _view(self._place, begin, end)
        if view is None:  # compaction may have copied it to another segment
            place = self._find()
            if place is None or (place.nbytes, place.crc) != (self.nbytes, self.crc):
                return None
            self._place = place
            view = _view(place, begin, end)
        return view


def _view(place: BlobPlace, begin: int, end: int) -> memoryview | None:
    view = place.segment.blob(place.begin + begin, end - begin, of=place.begin)
    # Check after making the view: from now on the view keeps the blob unchanged.
    if place.segment.removed or place.offset in place.topic.discarded:
        return None
    return view


def blob_place(
    topic: LogTopic, segments: Mapping[int, Segment], place: tuple[memoryview, int, int]
) -> BlobPlace | None:
    """Returns the blob of the message at a place: (memory, position, offset). None: it has no blob.
    Needs no lock. Raises LogDamaged."""
    record, offset = record_at(place), place[2]
    if not record.flags & _HAS_BLOB:
        return None
    first, begin, nbytes, crc = BLOB.unpack_from(record.body)
    segment = segments.get(first)
    return None if segment is None else BlobPlace(topic, offset, segment, begin, nbytes, crc)
