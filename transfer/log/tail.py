"""The tail of the last segment: which of its records are whole, and which of them no sync is proven for."""

from __future__ import annotations

from collections import deque

from transfer.log.damage import Gap, Known, claim, walk
from transfer.log.holes import Due, Hole, give_back
from transfer.log.record import BLOB, MAGIC_BYTES, Flag, Kind, Record, decode, scan
from transfer.log.segment import Segment
from transfer.log.segment_walk import walk_mended
from transfer.log.state import discard_of
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

#: what to do about damage that cannot be served around
RESTORE = "restore the file; opening with repair=True cuts it off with all that follows, into quarantine"
_HAS_BLOB = int(Flag.HAS_BLOB)
#: bytes that are written again at a time
_PIECE = 16 << 20


class Read:
    """What the last segment holds, each record looked at once. gaps: where it is damaged. blobs: the records
    that have some. synced: the record before which all was, as any says; proven: as one says behind the
    beginning. unproven: sequence and position of those that are whole and not proven. opened: the one behind
    all state. end: the one behind the last."""

    def __init__(self, segment: Segment, known: Known, repair: bool) -> None:
        self.segment = segment
        self.gaps: list[Gap] = []
        self.blobs: list[Record] = []
        self.synced = self.proven = max(segment.first, known.following)
        self.unproven: deque[tuple[int, int]] = deque()
        self.opened = self.end = segment.first
        read = scan(segment.memory, segment.first) if repair else walk_mended(segment, known)
        for one in read:
            if isinstance(one, Gap):
                self.gaps.append(one)
                self.end = one.following
                continue
            self.end = one.sequence + 1
            self.synced = max(self.synced, one.sequence - one.lag)
            self.proven = max(self.proven, claim(one))
            self.unproven.append((one.sequence, one.position))
            while self.unproven and self.unproven[0][0] < self.proven:
                self.unproven.popleft()
            if one.flags & _HAS_BLOB:
                self.blobs.append(one)
            if one.kind == Kind.OPENED:
                self.opened = one.sequence


def whole_until(read: Read, segments: list[Segment]) -> int:
    """The first record of the last segment that is not whole, nor its blob, though it is wanted.

    Of blobs those are not read that were synced, as later records say, or a clean end. One that is discarded
    by a later record that counts need not be whole: it may be a hole.
    """
    torn = [one for one in read.blobs if one.sequence >= read.synced and not _blob_is_whole(segments, one)]
    discards = _discards(read) if torn else []
    end, before = read.end, -1
    while end != before:
        before = end
        for record in torn:
            wanted = not any(
                sequence < end and topic == record.topic and low <= record.offset < high
                for sequence, topic, low, high in discards
            )
            if record.sequence < end and wanted:
                end = record.sequence
                break
    return end


def _discards(read: Read) -> list[tuple[int, int, int, int]]:
    """(sequence, topic, begin, end) of each record that discards blobs."""
    segment = read.segment
    known = Known(read.synced, 0)
    return [
        (record.sequence, *discard)
        for record in walk(segment.memory, segment.find, segment.first, known)
        if isinstance(record, Record)
        and record.kind == Kind.STATE
        and (discard := discard_of(record)) is not None
    ]


def look_for_damage(segment: Segment, sequence: int, known: int = 0) -> None:
    """Raises LogDamaged if record `sequence`, the first one that is not good, was synced: a record behind it
    says so, or all before `known` were.
    """
    if sequence < known:
        raise LogDamaged(
            f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: it was synced "
            "when the log was closed",
            hint=RESTORE,
        )
    position = segment.find(MAGIC_BYTES, segment.end + 1)
    while position >= 0:
        record = decode(segment.memory, position)
        if record is not None and claim(record) > sequence:
            raise LogDamaged(
                f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: record "
                f"{record.sequence} says that it was synced",
                hint=RESTORE,
            )
        position = segment.find(MAGIC_BYTES, position + 1)


def _blob_is_whole(segments: list[Segment], record: Record) -> bool:
    first, position, nbytes, crc = BLOB.unpack_from(record.body)
    for segment in segments:
        if segment.first == first:
            blob = segment.blob(position, nbytes)
            return blob is not None and crc32c(blob) == crc
    return int(first) < segments[0].first  # retention let it go


def write_again(read: Read, segments: list[Segment], until: int) -> None:
    """Writes what is whole but not known to be synced once more, with its blobs. A sync that failed leaves
    pages in memory that the system takes for written: no later sync would bring them to the disk. Raises
    OSError."""
    segment = read.segment
    begin = read.unproven[0][1] if read.unproven else segment.end
    for position in range(begin, segment.end, _PIECE):
        segment.write(position, bytes(segment.memory[position : min(position + _PIECE, segment.end)]))
    by_first = {one.first: one for one in segments}
    for record in read.blobs:
        if read.proven <= record.sequence < until:
            first, position, nbytes, _ = BLOB.unpack_from(record.body)
            if first in by_first:
                _write_blob_again(by_first[first], position, nbytes)


def _write_blob_again(segment: Segment, begin: int, nbytes: int) -> None:
    for at in range(0, nbytes, _PIECE):
        piece = segment.blob(begin + at, min(_PIECE, nbytes - at), of=begin)
        if piece is None:
            return
        segment.write_blob(begin + at, [memoryview(bytes(piece))])


def clear(segment: Segment, records: list[Record]) -> None:
    """What none of the records names, a crash left of blobs that were arriving: it is given back."""
    places = (BLOB.unpack_from(record.body)[:3] for record in records)
    gaps, end = [], 0
    for position, nbytes in sorted(place[1:] for place in places if place[0] == segment.first):
        gaps.append(Hole(segment, end, max(0, position - end)))
        end = max(end, position + nbytes)
    segment.cut_blobs(end)
    give_back(Due([], {}, gaps))
