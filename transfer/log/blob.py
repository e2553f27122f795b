"""A message's large payload, read in ranges: only what is looked at takes memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from transfer.log.index import Topic
from transfer.log.message import record_at
from transfer.log.record import BLOB, Flag
from transfer.log.segment import Segment

_HAS_BLOB = int(Flag.HAS_BLOB)


class BlobPlace(NamedTuple):
    """Where the blob of a message lies. begin: in the segment's file of blobs."""

    topic: Topic
    offset: int
    segment: Segment
    begin: int
    nbytes: int
    crc: int


class BlobReader:
    """The blob of one message; `Log.blob_at` makes it. Thread-safe. It keeps nothing: the message may go.

    nbytes, crc: of the whole blob. `view` checks nothing: whoever reads all of it compares the CRC-32C.
    """

    def __init__(self, place: BlobPlace, look: Callable[[], BlobPlace | None]) -> None:
        self.nbytes = place.nbytes
        self.crc = place.crc
        self._place = place
        self._look = look

    def view(self, begin: int, end: int) -> memoryview | None:
        """These bytes, read-only: a view that stays good if the message goes.

        None: it is gone, or its file is cut short. Raises LogDamaged, Closed.
        """
        view = _view(self._place, begin, end)
        if view is None:  # compaction may have carried it elsewhere
            place = self._look()
            if place is None or (place.nbytes, place.crc) != (self.nbytes, self.crc):
                return None
            self._place = place
            view = _view(place, begin, end)
        return view


def _view(place: BlobPlace, begin: int, end: int) -> memoryview | None:
    view = place.segment.blob(place.begin + begin, end - begin, of=place.begin)
    # Asked behind the view: from now on the blob stays as it is for the view's sake.
    if place.segment.removed or place.offset in place.topic.discarded:
        return None
    return view


def blob_place(
    topic: Topic, segments: Mapping[int, Segment], place: tuple[memoryview, int, int]
) -> BlobPlace | None:
    """The blob of the message at a place: (memory, position, offset). None: there is none. Needs no lock.

    Raises LogDamaged.
    """
    record, offset = record_at(place), place[2]
    if not record.flags & _HAS_BLOB:
        return None
    first, begin, nbytes, crc = BLOB.unpack_from(record.body)
    segment = segments.get(first)
    return None if segment is None else BlobPlace(topic, offset, segment, begin, nbytes, crc)
