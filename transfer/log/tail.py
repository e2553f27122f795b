"""The tail of the last segment: finds its complete records, and those that may not be synced."""

from __future__ import annotations

from collections import deque

from transfer.log.damage import Gap, Known, claim, walk
from transfer.log.holes import Due, Hole, give_back
from transfer.log.record import BLOB, MAGIC_BYTES, Record, RecordFlag, RecordKind, decode, scan
from transfer.log.segment import Segment
from transfer.log.segment_walk import walk_repaired
from transfer.log.state import discard_of
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

#: hint for damage with which the log cannot be served
RESTORE = "restore the file; opening with repair=True cuts it off with all that follows, into quarantine"
_HAS_BLOB = int(RecordFlag.HAS_BLOB)
#: bytes of one write
_PIECE = 16 << 20


class TailScan:
    """Scans the last segment once.

    gaps: damaged records. blobs: records with blobs. synced: the sequence before which all records are
    synced, according to any record; proven: according to a record after the segment's beginning. unproven:
    sequence and position of complete records from `proven` on. opened: sequence of the OPENED record. end:
    the sequence after the last record.
    """

    def __init__(self, segment: Segment, known: Known, repair: bool) -> None:
        self.segment = segment
        self.gaps: list[Gap] = []
        self.blobs: list[Record] = []
        self.synced = self.proven = max(segment.first, known.following)
        self.unproven: deque[tuple[int, int]] = deque()
        self.opened = self.end = segment.first
        records = scan(segment.memory, segment.first) if repair else walk_repaired(segment, known)
        for one in records:
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
            if one.kind == RecordKind.OPENED:
                self.opened = one.sequence


def whole_until(read: TailScan, segments: list[Segment]) -> int:
    """Returns the first record of the last segment that is incomplete, or whose blob is.

    Does not read blobs that were synced, according to later records or a clean end. A blob that a later
    complete
    record discards may be incomplete: it may be a hole.
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


def _discards(read: TailScan) -> list[tuple[int, int, int, int]]:
    """Returns (sequence, topic, begin, end) of each record that discards blobs."""
    segment = read.segment
    known = Known(read.synced, 0)
    return [
        (record.sequence, *discard)
        for record in walk(segment.memory, segment.find, segment.first, known)
        if isinstance(record, Record)
        and record.kind == RecordKind.STATE
        and (discard := discard_of(record)) is not None
    ]


def check_unsynced(segment: Segment, sequence: int, known: int = 0) -> None:
    """Raises LogDamaged if record `sequence`, the first incomplete one, was synced.
    It was if it is before `known`, or if a later record shows it."""
    if sequence < known:
        raise LogDamaged(
            f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: the log was closed "
            "after it was synced",
            hint=RESTORE,
        )
    position = segment.find(MAGIC_BYTES, segment.end + 1)
    while position >= 0:
        record = decode(segment.memory, position)
        if record is not None and claim(record) > sequence:
            raise LogDamaged(
                f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: record "
                f"{record.sequence} shows that it was synced",
                hint=RESTORE,
            )
        position = segment.find(MAGIC_BYTES, position + 1)


def _blob_is_whole(segments: list[Segment], record: Record) -> bool:
    first, position, nbytes, crc = BLOB.unpack_from(record.body)
    for segment in segments:
        if segment.first == first:
            blob = segment.blob(position, nbytes)
            return blob is not None and crc32c(blob) == crc
    return int(first) < segments[0].first  # retention has removed it


def write_again(read: TailScan, segments: list[Segment], until: int) -> None:
    """Writes complete records that may not be synced again, with their blobs. Raises OSError.

    After a failed sync the system regards pages in memory as written, so a later sync would not write them.
    """
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
    """Frees the parts of the blob file that no record names, which a crash left of arriving blobs."""
    places = (BLOB.unpack_from(record.body)[:3] for record in records)
    gaps, end = [], 0
    for position, nbytes in sorted(place[1:] for place in places if place[0] == segment.first):
        gaps.append(Hole(segment, end, max(0, position - end)))
        end = max(end, position + nbytes)
    segment.cut_blobs(end)
    give_back(Due([], {}, gaps))
