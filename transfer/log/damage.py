"""Records that were synced and are not what was written: found, told from a torn tail, mended if one bit is.

Nothing here changes a file. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from transfer.log.record import HEADER_SIZE, MAGIC_BYTES, Flag, Kind, Record, decode, scan, state_of
from transfer.log.state import TOPIC, number_of

_MESSAGE, _STATE, _OPENED = int(Kind.MESSAGE), int(Kind.STATE), int(Kind.OPENED)
_SNAPSHOT, _CARRIED = int(Flag.SNAPSHOT), int(Flag.CARRIED)
#: bytes of a record up to which CRC-32C tells one wrong bit from up to four (its distance is 6 up to there)
_MENDABLE = 655
#: where these bytes are next behind a position, or -1
Find = Callable[[bytes, int], int]


class Damage(NamedTuple):
    """What is damaged in a log, in words. topic: whose messages are, from offset `begin` on and before `end`;
    "": it is not known, or it is about no topic."""

    text: str
    topic: str = ""
    begin: int = 0
    end: int = 0


class Gap(NamedTuple):
    """Records that were synced and are not whole: bytes `position` to `end`, sequences `sequence` to
    `following`. header: of a single message whose header fits all that is known; None: it is not known what
    they were."""

    position: int
    end: int
    sequence: int
    following: int
    header: Record | None = None


class Known(NamedTuple):
    """What was synced for certain: all records before `following`, which end at byte `end`."""

    following: int = 0
    end: int = 0


def claim(record: Record) -> int:
    """The sequence before which all was synced, as a record says. What a segment begins with says nothing of
    it: it is written in one go."""
    if record.kind == _OPENED or record.flags & _SNAPSHOT:
        return 0
    return record.sequence - record.lag


def walk(memory: memoryview, find: Find, first: int, known: Known) -> Iterator[Record | Gap]:
    """The records, and where records are damaged, up to the first one that may be torn."""
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
    """The damage that begins there. None: nothing says that all of it was synced."""
    for after in _behind(memory, find, position, sequence):
        if after.sequence <= known.following or any(
            claim(record) >= after.sequence for record in _chain(memory, after)
        ):
            return Gap(position, after.position, sequence, after.sequence)
        break
    if sequence < known.following and position < known.end <= len(memory):
        return Gap(position, known.end, sequence, known.following)
    return None


def _behind(memory: memoryview, find: Find, position: int, sequence: int) -> Iterator[Record]:
    """Whole records that may be the next one: where the damaged one says that it ends, and then all."""
    damaged = decode(memory, position, verify=False)
    if damaged is not None and damaged.sequence == sequence:
        after = decode(memory, damaged.end)
        if after is not None and after.sequence == sequence + 1:
            yield after
    at = find(MAGIC_BYTES, position + 1)
    while at >= 0:
        after = decode(memory, at)
        # No more records can be lost than there is room for.
        if after is not None and sequence < after.sequence <= sequence + (at - position) // HEADER_SIZE:
            yield after
        at = find(MAGIC_BYTES, at + 1)


def _chain(memory: memoryview, record: Record) -> Iterator[Record]:
    """It, and the whole records that follow."""
    following: Record | None = record
    while following is not None:
        yield following
        sequence = following.sequence + 1
        following = decode(memory, following.end)
        if following is not None and following.sequence != sequence:
            return


def _with_header(memory: memoryview, first: int, gap: Gap) -> Gap:
    """With the header of the one message that is damaged, if that is what it is."""
    if gap.following != gap.sequence + 1:
        return gap
    header = decode(memory, gap.position, verify=False)
    if (
        header is None
        or (header.sequence, header.end, header.kind) != (gap.sequence, gap.end, _MESSAGE)
        or header.flags & ~(Flag.HAS_BLOB | Flag.CARRIED)
    ):
        return gap
    following = _next_offset(memory, first, gap.position, header.topic)
    if following is None:
        return gap
    fits = header.offset < following if header.flags & _CARRIED else header.offset == following
    return gap._replace(header=header) if fits else gap


def _next_offset(memory: memoryview, first: int, before: int, topic: int) -> int | None:
    """The offset of a topic's next message, as the records say that begin before a byte. Headers alone are
    looked at. None: nothing is known of the topic."""
    following: int | None = None
    for record in scan(memory[:before], first, verify=False):
        if record.kind == _MESSAGE and record.topic == topic and not record.flags & _CARRIED:
            following = record.offset + 1
        elif record.kind == _STATE:
            key, value = state_of(record.body)
            if key.startswith(TOPIC) and number_of(key) == topic and len(value) >= 8:
                following = max(following or 0, int.from_bytes(value[:8], "little"))
    return following


def mended(data: bytes, sequence: int) -> bytes | None:
    """A record's bytes with the one bit put right that makes it whole; None: more is wrong, or it is long.

    data: from where it begins to where the next one does.
    """
    if not HEADER_SIZE <= len(data) <= _MENDABLE:
        return None
    for bit in range(len(data) * 8):
        tried = bytearray(data)
        tried[bit // 8] ^= 1 << bit % 8
        record = decode(memoryview(tried), 0)
        if record is not None and record.sequence == sequence and record.end == len(data):
            return bytes(tried)
    return None
