"""What a folder of a log holds when it is opened: its segments, its topics, its state.

A crash leaves records and blobs that were not synced in any condition, and nobody was told that they were
kept: the last segment ends before the first of them that is not whole. A record that is not whole though a
later one calls it synced is damage, and is told.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from transfer.log.index import Topic
from transfer.log.record import (
    BLOB,
    HEADER_SIZE,
    MAGIC,
    MAGIC_BYTES,
    Flag,
    Kind,
    Record,
    decode,
    scan,
    state_of,
)
from transfer.log.segment import Segment, full_disk_told, segments_in, sync_folder
from transports.core import crc32c
from transports.errors import LogDamaged

#: a record's header without its CRC and lag; see `record`
_MESSAGE = struct.Struct("<I4xIIQQQ4xBB")
#: state of the log's own: topics by number, offsets of groups by number and name, ends of ranges of offsets
#: whose blobs were discarded by number and begin
_TOPIC, _GROUP, _DISCARDED = b"\0t", b"\0g", b"\0d"
#: the highest number that a topic ever had, as far as it was dropped
HIGHEST = b"\0n"


def topic_key(number: int) -> bytes:
    """The key of a topic's state."""
    return _TOPIC + number.to_bytes(4, "little")


def topic_value(topic: Topic) -> bytes:
    """Its value: the next offset and the name."""
    return topic.end.to_bytes(8, "little") + topic.name.encode()


def group_key(number: int, group: str) -> bytes:
    """The key of a group's offset in a topic."""
    return _GROUP + number.to_bytes(4, "little") + group.encode()


def discarded_key(number: int, begin: int) -> bytes:
    """The key of a range of a topic's offsets whose blobs are not needed any more; its value is the end."""
    return _DISCARDED + number.to_bytes(4, "little") + begin.to_bytes(8, "little")


def forget_topic(state: dict[bytes, bytes], number: int) -> None:
    """What state tells of a topic that was dropped is gone with it, without records of its own."""
    its = number.to_bytes(4, "little")
    for key in [key for key in state if key[:2] in (_GROUP, _DISCARDED) and key[2:6] == its]:
        del state[key]


@dataclass
class Recovered:
    """dropped: topics that were, as far as their messages are still in the segments. sequence: of the next
    record. cut: bytes of a torn tail that were thrown away.
    """

    segments: list[Segment] = field(default_factory=list)
    topics: dict[int, Topic] = field(default_factory=dict)
    dropped: list[Topic] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)
    sequence: int = 0
    cut: int = 0


def recover(folder: Path, *, repair: bool = False) -> Recovered:
    """Opens all segments of a folder. repair: damage is cut off, with all that follows it.

    Raises LogDamaged; then nothing is open, and nothing was changed.
    """
    firsts = segments_in(folder)
    while firsts and _unbegun(folder, firsts[-1], repair):
        firsts.pop()
    found = Recovered()
    try:
        for number, first in enumerate(firsts):
            try:
                _take(found, folder, first, last=number == len(firsts) - 1, repair=repair)
            except LogDamaged:
                if not repair:
                    raise
                _drop_behind(found, folder, firsts)
                break
    except BaseException:
        for segment in found.segments:
            segment.close()
        raise
    _take_discarded(found)
    return found


def _take_discarded(found: Recovered) -> None:
    """What state tells of discarded blobs, merged; a crash may have left ranges within others."""
    ranges = {key: value for key, value in found.state.items() if key.startswith(_DISCARDED)}
    for key, value in ranges.items():
        del found.state[key]
        topic = found.topics[int.from_bytes(key[2:6], "little")]
        begin, end = int.from_bytes(key[6:], "little"), int.from_bytes(value, "little")
        topic.discarded = topic.discarded.joined(begin, min(end, topic.end))
    for topic in found.topics.values():
        for begin, end in topic.discarded:
            found.state[discarded_key(topic.number, begin)] = end.to_bytes(8, "little")


def _unbegun(folder: Path, first: int, repair: bool) -> bool:
    """True if the last segment was not begun when the crash came; it is removed. It holds state only."""
    segment = Segment.open(folder, first)
    sequence = first
    try:
        for record in scan(segment.memory, first):
            if record.kind == Kind.OPENED:
                segment.close()
                return False
            segment.end, sequence = record.end, record.sequence + 1
        if not repair:
            _look_for_damage(segment, sequence)
    except LogDamaged:
        segment.close()
        raise
    segment.remove()
    sync_folder(folder)
    return True


def _take(found: Recovered, folder: Path, first: int, *, last: bool, repair: bool) -> None:
    if found.segments and first != found.sequence:
        raise LogDamaged(
            f"segment {first} follows record {found.sequence - 1}: a file is missing, or cut short",
            hint="restore it; opening with repair=True drops what follows",
        )
    segment = Segment.open(folder, first)
    found.segments.append(segment)
    found.sequence = first
    if last:
        _take_last(found, segment, repair)
    else:
        _take_sealed(found, segment)


def _drop_behind(found: Recovered, folder: Path, firsts: list[int]) -> None:
    """What was taken so far is all."""
    segment = found.segments[-1]
    for first in firsts:
        if first > segment.first:
            Segment.open(folder, first).remove()
    sync_folder(folder)
    segment.cut(segment.end)
    for topic in found.topics.values():
        topic.groups = {group: min(offset, topic.end) for group, offset in topic.groups.items()}


def _take_sealed(found: Recovered, segment: Segment) -> None:
    """All of it was synced before the next one was begun, so the headers of messages tell enough.

    Most records are messages without a blob: only what is wanted of their headers is looked at.
    """
    memory, position, size = segment.memory, 0, len(segment.memory)
    unpack, first, topics, ends = _MESSAGE.unpack_from, segment.first, found.topics, segment.ends
    sequence = first
    while position + HEADER_SIZE <= size:
        magic, length, number, its, offset, time, kind, flags = unpack(memory, position)
        end = position + HEADER_SIZE + length
        topic = topics.get(number)
        if magic != MAGIC or its != sequence or end > size:
            break
        if kind == Kind.MESSAGE and not flags and topic is not None and topic.end == offset:
            topic.add(first, position)
            segment.newest, ends[number] = time, offset + 1
            segment.end = end
            found.sequence = sequence + 1
        else:
            _take_rarer(found, segment, position)
        position, sequence = end, sequence + 1
    if bytes(segment.memory[segment.end :]).rstrip(b"\0"):
        raise LogDamaged(f"record {found.sequence} of {segment.path.name} is damaged")
    segment.seal()


def _take_rarer(found: Recovered, segment: Segment, position: int) -> None:
    record = decode(segment.memory, position)
    if record is None:
        raise LogDamaged(f"record {found.sequence} of {segment.path.name} is damaged")
    _apply(found, segment, record)


def _take_last(found: Recovered, segment: Segment, repair: bool) -> None:
    """The last segment, byte by byte, up to the first record that is not whole."""
    end = _whole_until(found, segment)
    for record in scan(segment.memory, segment.first, verify=False):
        if record.sequence >= end:
            break
        _apply(found, segment, record)
    if not repair:
        _look_for_damage(segment, found.sequence)
    tail = bytes(segment.memory[segment.end :]).rstrip(b"\0")
    if tail:
        found.cut = len(tail)
        segment.cut(segment.end)
    with full_disk_told():  # from now on all of it counts as synced
        segment.sync()
        for other in found.segments:
            other.sync_blobs()


def _whole_until(found: Recovered, segment: Segment) -> int:
    """The first record of the last segment that is not whole, nor its blob, though it is wanted.

    A blob that is discarded by a later record that counts need not be whole: it may be a hole already.
    """
    synced = end = segment.first
    torn: list[Record] = []
    discards: list[tuple[int, int, int, int]] = []  # (sequence, topic, begin, end)
    for record in scan(segment.memory, segment.first):
        if record.sequence >= synced and not _blob_is_whole(found, record):
            torn.append(record)
        synced = max(synced, record.sequence - record.lag)
        end = record.sequence + 1
        if torn and record.kind == Kind.STATE and (discard := _discard_of(record)):
            discards.append((record.sequence, *discard))
    before = -1
    while end != before:
        before = end
        for record in torn:
            wanted = not any(
                record.sequence < sequence < end and topic == record.topic and low <= record.offset < high
                for sequence, topic, low, high in discards
            )
            if record.sequence < end and wanted:
                end = record.sequence
                break
    return end


def _discard_of(record: Record) -> tuple[int, int, int] | None:
    """(topic, begin, end) of the blobs that a record of state discards."""
    key, value = state_of(record.body)
    number = int.from_bytes(key[2:6], "little")
    if record.flags & Flag.REMOVED:
        return (number, 0, 1 << 64) if key.startswith(_TOPIC) else None
    if not key.startswith(_DISCARDED):
        return None
    return number, int.from_bytes(key[6:], "little"), int.from_bytes(value, "little")


def _look_for_damage(segment: Segment, sequence: int) -> None:
    """Raises LogDamaged if a record behind the last good one says that record `sequence` was synced."""
    position = segment.find(MAGIC_BYTES, segment.end + 1)
    while position >= 0:
        record = decode(segment.memory, position)
        if record is not None and record.sequence - record.lag > sequence:
            raise LogDamaged(
                f"record {sequence} of {segment.path.name} is damaged at byte {segment.end}: record "
                f"{record.sequence} says that it was synced",
                hint="restore the file; opening with repair=True drops it and all that follows",
            )
        position = segment.find(MAGIC_BYTES, position + 1)


def _blob_is_whole(found: Recovered, record: Record) -> bool:
    if not record.flags & Flag.HAS_BLOB:
        return True
    first, position, nbytes, crc = BLOB.unpack_from(record.body)
    for segment in found.segments:
        if segment.first == first:
            blob = segment.blob(position, nbytes)
            return blob is not None and crc32c(blob) == crc
    return int(first) < found.segments[0].first  # retention let it go


def _apply(found: Recovered, segment: Segment, record: Record) -> None:
    found.sequence = record.sequence + 1
    segment.end = record.end
    if record.kind == Kind.MESSAGE:
        _take_message(found, segment, record)
    elif record.kind == Kind.STATE:
        _take_state(found, record)


def _take_state(found: Recovered, record: Record) -> None:
    key, value = state_of(record.body)
    if key.startswith(_TOPIC):
        number, end = int.from_bytes(key[2:6], "little"), int.from_bytes(value[:8], "little")
        if record.flags & Flag.REMOVED:
            _drop(found, number)
            return
        topic = found.topics.setdefault(number, Topic(value[8:].decode(), number, end))
        topic.skip_to(end)
        return
    if record.flags & Flag.REMOVED:
        found.state.pop(key, None)
    else:
        found.state[key] = value
    if key.startswith(_GROUP):
        groups, group = found.topics[int.from_bytes(key[2:6], "little")].groups, key[6:].decode()
        if record.flags & Flag.REMOVED:
            groups.pop(group, None)
        else:
            groups[group] = int.from_bytes(value, "little")


def _drop(found: Recovered, number: int) -> None:
    forget_topic(found.state, number)
    found.dropped.append(found.topics.pop(number))
    for segment in found.segments:
        segment.ends.pop(number, None)


def _take_message(found: Recovered, segment: Segment, record: Record) -> None:
    topic = found.topics.get(record.topic)
    if topic is None:
        raise LogDamaged(f"record {record.sequence} of {segment.path.name} belongs to no topic that is known")
    topic.skip_to(record.offset)
    if topic.end != record.offset:
        raise LogDamaged(f"message {topic.end} of topic {topic.name!r} is missing before {record.offset}")
    topic.add(segment.first, record.position)
    segment.newest = max(segment.newest, record.time)
    segment.ends[record.topic] = topic.end
    if record.flags & Flag.HAS_BLOB:
        first, position, nbytes, _ = BLOB.unpack_from(record.body)
        for other in found.segments:
            if other.first == first:
                other.blob_end = max(other.blob_end, position + nbytes)
                other.ends[record.topic] = max(other.ends.get(record.topic, 0), topic.end)
                other.newest = max(other.newest, record.time)
