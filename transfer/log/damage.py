"""Detects damage of synced records, as opposed to a torn tail, and repairs a single wrong bit.

Changes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from transfer.log.record import (
    HEADER_SIZE,
    MAGIC_BYTES,
    Record,
    RecordFlag,
    RecordKind,
    decode,
    scan,
    state_of,
)
from transfer.log.state import TOPIC, number_of

_MESSAGE, _STATE, _OPENED = int(RecordKind.MESSAGE), int(RecordKind.STATE), int(RecordKind.OPENED)
_SNAPSHOT, _CARRIED = int(RecordFlag.SNAPSHOT), int(RecordFlag.CARRIED)
#: most bytes for which CRC-32C distinguishes one wrong bit from two to four (its distance is 6 up to there)
_REPAIRABLE = 655
#: returns where these bytes occur next after a position, or -1
Find = Callable[[bytes, int], int]


class Damage(NamedTuple):
    """A text about damage in a log. topic, begin, end: the damaged messages' topic and range of offsets.

    topic "": unknown, or the damage concerns no topic.
    """

    text: str
    topic: str = ""
    begin: int = 0
    end: int = 0


class Gap(NamedTuple):
    """Damaged synced records: bytes `position` to `end`, sequences `sequence` to `following`.
    header: that of a single message, if it is consistent; None: it is unknown what the records were."""

    position: int
    end: int
    sequence: int
    following: int
    header: Record | None = None


class Known(NamedTuple):
    """The records that are known to be synced: all before `following`, which end at byte `end`."""

    following: int = 0
    end: int = 0


def claim(record: Record) -> int:
    """Returns the sequence before which all records were synced, according to a record.
    The records at a segment's beginning do not show it, as they are written at once."""
    if record.kind == _OPENED or record.flags & _SNAPSHOT:
        return 0
    return record.sequence - record.lag


def walk(memory: memoryview, find: Find, first: int, known: Known) -> Iterator[Record | Gap]:
    """Yields the records, and the gaps of damaged ones, up to the first one that may be torn."""
    position, sequence = 0, first
    while True:
        record = decode(memory, position)
        if record is not None and record.sequence == sequence:
            yield record
            position, sequence = record.end, sequence + 1
            continue
        gap = _gap(memory, find, position, sequence, known)
        if gap is None:
            return
        yield _with_header(memory, first, gap)
        position, sequence = gap.end, gap.following


def _gap(memory: memoryview, find: Find, position: int, sequence: int, known: Known) -> Gap | None:
    """Returns the damage that begins at a position. None: no record shows that it was synced."""
    for after in _candidates(memory, find, position, sequence):
        if after.sequence <= known.following or any(
            claim(record) >= after.sequence for record in _chain(memory, after)
        ):
            return Gap(position, after.position, sequence, after.sequence)
        break
    if sequence < known.following and position < known.end <= len(memory):
        return Gap(position, known.end, sequence, known.following)
    return None


def _candidates(memory: memoryview, find: Find, position: int, sequence: int) -> Iterator[Record]:
    """Yields whole records that may be the next one: first the one at the damaged record's end, then all."""
    damaged = decode(memory, position, verify=False)
    if damaged is not None and damaged.sequence == sequence:
        after = decode(memory, damaged.end)
        if after is not None and after.sequence == sequence + 1:
            yield after
    at = find(MAGIC_BYTES, position + 1)
    while at >= 0:
        after = decode(memory, at)
        # The damaged bytes bound the number of lost records.
        if after is not None and sequence < after.sequence <= sequence + (at - position) // HEADER_SIZE:
            yield after
        at = find(MAGIC_BYTES, at + 1)


def _chain(memory: memoryview, record: Record) -> Iterator[Record]:
    """Yields a record, and the whole records that follow it."""
    following: Record | None = record
    while following is not None:
        yield following
        sequence = following.sequence + 1
        following = decode(memory, following.end)
        if following is not None and following.sequence != sequence:
            return


def _with_header(memory: memoryview, first: int, gap: Gap) -> Gap:
    """Returns the gap with its header, if it is a single damaged message."""
    if gap.following != gap.sequence + 1:
        return gap
    header = decode(memory, gap.position, verify=False)
    if (
        header is None
        or (header.sequence, header.end, header.kind) != (gap.sequence, gap.end, _MESSAGE)
        or header.flags & ~(RecordFlag.HAS_BLOB | RecordFlag.CARRIED)
    ):
        return gap
    following = _next_offset(memory, first, gap.position, header.topic)
    if following is None:
        return gap
    fits = header.offset < following if header.flags & _CARRIED else header.offset == following
    return gap._replace(header=header) if fits else gap


def _next_offset(memory: memoryview, first: int, before: int, topic: int) -> int | None:
    """Returns the offset of a topic's next message, from the headers of the records before a byte.
    None: these records do not name the topic."""
    following: int | None = None
    for record in scan(memory[:before], first, verify=False):
        if record.kind == _MESSAGE and record.topic == topic and not record.flags & _CARRIED:
            following = record.offset + 1
        elif record.kind == _STATE:
            key, value = state_of(record.body)
            if key.startswith(TOPIC) and number_of(key) == topic and len(value) >= 8:
                following = max(following or 0, int.from_bytes(value[:8], "little"))
    return following


def repair_bit(data: bytes, sequence: int) -> bytes | None:
    """Returns a record's bytes with its single wrong bit corrected; None: that is not possible.
    data: the bytes from its beginning to that of the next record. A long record cannot be corrected."""
    if not HEADER_SIZE <= len(data) <= _REPAIRABLE:
        return None
    for bit in range(len(data) * 8):
        tried = bytearray(data)
        tried[bit // 8] ^= 1 << bit % 8
        record = decode(memoryview(tried), 0)
        if record is not None and record.sequence == sequence and record.end == len(data):
            return bytes(tried)
    return None
