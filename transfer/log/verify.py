"""Verifies a log: every record, every blob, every index file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from transfer.log.contents import Contents, load, read_headers
from transfer.log.record import BLOB, Record, RecordFlag, RecordKind, decode
from transfer.log.segment import Segment
from transfer.transports.core import crc32c

_A_MESSAGE, _HAS_BLOB = int(RecordKind.MESSAGE), int(RecordFlag.HAS_BLOB)
#: bytes of one read of a blob, so that few of its pages are in memory
_PIECE = 16 << 20
#: (topic's number, offset): returns whether the message's blob must be complete
Wanted = Callable[[int, int], bool]


@dataclass
class VerifyResult:
    """The result. records, blobs: the number read. nbytes: the bytes of both. damages: texts."""

    records: int = 0
    blobs: int = 0
    nbytes: int = 0
    damages: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.damages


@dataclass(frozen=True)
class LogPart:
    """A segment to verify: its records up to sequence `following`."""

    segment: Segment
    memory: memoryview
    following: int
    sealed: bool


def to_verify(segments: Sequence[Segment], written: int) -> list[LogPart]:
    """Returns the segments to verify, with all records before `written`. Needs the journal's lock."""
    if not segments:
        return []
    parts = [LogPart(one, one.memory, next_.first, sealed=True) for one, next_ in pairwise(segments)]
    return [*parts, LogPart(segments[-1], segments[-1].memory, written, sealed=False)]


def verify(
    parts: Iterable[LogPart],
    segments: Mapping[int, Segment],
    wanted: Wanted,
    progress: Callable[[int], object] | None = None,
) -> VerifyResult:
    """Verifies the segments. A segment that is removed meanwhile counts as far as it was read. Needs no lock.

    progress: called after each segment with the bytes read so far.
    """
    verified = VerifyResult()
    for part in parts:
        _verify_records(verified, part, segments, wanted)
        if part.sealed:
            _verify_index(verified, part)
        if progress is not None:
            progress(verified.nbytes)
    return verified


def _verify_records(
    verified: VerifyResult, part: LogPart, segments: Mapping[int, Segment], wanted: Wanted
) -> None:
    position, name = 0, part.segment.path.name
    for sequence in range(part.segment.first, part.following):
        record = decode(part.memory, position)
        if record is None or record.sequence != sequence:
            verified.damages.append(f"record {sequence} of {name} is damaged at byte {position}")
            return
        verified.records += 1
        verified.nbytes += record.end - position
        position = record.end
        if record.kind == _A_MESSAGE and record.flags & _HAS_BLOB:
            _verify_blob(verified, record, segments, wanted)


def _verify_blob(
    verified: VerifyResult, record: Record, segments: Mapping[int, Segment], wanted: Wanted
) -> None:
    first, position, nbytes, crc = BLOB.unpack_from(record.body)
    segment = segments.get(first)
    if segment is None or not wanted(record.topic, record.offset):
        return
    blob = segment.blob(position, nbytes)
    found = 0
    for at in range(0, nbytes if blob is not None else 0, _PIECE):
        # Each piece is mapped separately, so that earlier pieces leave memory.
        piece = segment.blob(position + at, min(_PIECE, nbytes - at), of=position)
        found = crc32c(piece, found) if piece is not None else -1
        if found < 0:
            break
    # Check again: the blob may have been discarded, or its segment removed, during the read.
    if segment.removed or segment.closed or not wanted(record.topic, record.offset):
        return
    verified.blobs += 1
    verified.nbytes += nbytes
    if blob is None or found != crc:
        name = segment.path.with_suffix(".blobs").name
        verified.damages.append(
            f"the blob of message {record.offset} (topic {record.topic}) at byte {position} of {name} is "
            "damaged"
        )


def _verify_index(verified: VerifyResult, part: LogPart) -> None:
    """Compares an index with its records. A missing index is no damage: the next start makes it."""
    segment = part.segment
    index = load(segment.folder, segment.first)
    if index is None or segment.removed:
        return
    found = read_headers(part.memory, segment.first)
    if _summary(index) != _summary(found):
        verified.damages.append(f"the index of {segment.path.name} does not match its records")


def _summary(contents: Contents) -> tuple[object, ...]:
    positions = {
        (run.topic, run.first + at): position
        for run in contents.runs
        for at, position in enumerate(run.positions)
    }
    return contents.following, contents.end, contents.last, contents.uses, positions
