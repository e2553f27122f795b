"""Messages as they are read from the log's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from transfer.log.index import LogTopic
from transfer.log.record import BLOB, Record, RecordFlag, decode
from transfer.log.segment import Segment
from transfer.transports.core import crc32c
from transfer.transports.errors import LogDamaged

_HAS_BLOB = int(RecordFlag.HAS_BLOB)


class LogMessage(NamedTuple):
    """A message of a topic. time: nanoseconds since 1970, when it was appended.

    body, blob: read-only views of the log's files, which stay valid when the log is closed, or the message is
    removed or discarded. discarded: its blob is no longer kept (retention may also remove it shortly before
    the record); `blob` is None then.
    """

    offset: int
    time: int
    body: memoryview
    blob: memoryview | None
    discarded: bool = False


def messages_at(
    topic: LogTopic,
    segments: Mapping[int, Segment],
    places: Iterable[tuple[memoryview, int, int]],
    nbytes: int,
    verify: bool | int,
) -> list[LogMessage]:
    """Returns the messages at these places, up to `nbytes`, which the first may exceed. Raises LogDamaged."""
    messages: list[LogMessage] = []
    size = 0
    for place in places:
        message = _message_at(topic, segments, place, verify)
        if message is None:
            continue
        size += len(message.body) + (len(message.blob) if message.blob is not None else 0)
        if messages and size > nbytes:
            break
        messages.append(message)
    return messages


def record_at(place: tuple[memoryview, int, int]) -> Record:
    """Returns the record of the message at a place: (memory, position, offset). Raises LogDamaged."""
    memory, position, offset = place
    record = decode(memory, position)
    if record is None or record.offset != offset:
        raise LogDamaged(f"message {offset} at byte {position} is damaged")
    return record


def _message_at(
    topic: LogTopic, segments: Mapping[int, Segment], place: tuple[memoryview, int, int], verify: bool | int
) -> LogMessage | None:
    """Returns the message at a place: (memory, position, offset). None: the log was closed meanwhile.

    Needs no lock. Raises LogDamaged.
    """
    record, offset = record_at(place), place[2]
    if not record.flags & _HAS_BLOB:
        return LogMessage(record.offset, record.time, record.body, None)
    first, begin, nbytes, crc = BLOB.unpack_from(record.body)
    segment = segments.get(first)
    blob = segment.blob(begin, nbytes) if segment is not None else None
    # Check after making the view: from now on the view keeps the blob unchanged.
    if offset in topic.discarded or segment is None or segment.removed:
        return LogMessage(record.offset, record.time, record.body[BLOB.size :], None, True)
    if segment.closed:
        return None
    checked = verify if type(verify) is bool else nbytes < verify
    if blob is None or (checked and crc32c(blob) != crc):
        raise LogDamaged(f"the blob of message {offset} is damaged")
    return LogMessage(record.offset, record.time, record.body[BLOB.size :], blob)


def first_that(
    low: int, high: int, place: Callable[[int], tuple[memoryview, int] | None], test: Callable[[Record], bool]
) -> int:
    """Returns the first offset from `low` on whose message passes a test; `high`: none does.

    All messages after one that passes must pass too. place: returns the place of a message; None: it is gone,
    and does not count. Checks only headers. Raises LogDamaged.
    """
    while low < high:
        middle = (low + high) // 2
        where = place(middle)
        if where is None:
            low = middle + 1
            continue
        record = decode(*where, verify=False)
        if record is None or record.offset != middle:
            raise LogDamaged(f"message {middle} at byte {where[1]} is damaged")
        if test(record):
            high = middle
        else:
            low = middle + 1
    return low


def body_of(record: Record) -> memoryview:
    """Returns a message's body, without the place of its blob."""
    return record.body[BLOB.size :] if record.flags & _HAS_BLOB else record.body
