"""A record of the log, as bytes; little-endian.

    magic 4 | CRC-32C 4 | length 4 | topic 4 | sequence 8 | offset 8 | time 8 | lag 4 | kind 1 | flags 1 | 0 2
    body of that length

The CRC covers all bytes after it. sequence: of the record in the log, one higher than the last. offset: of a
message in its topic. time: nanoseconds since 1970. lag: the number of records before this one that were not
known to be synced when it was written. So a damaged record that a later one shows as synced is no torn tail.
This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from transfer.transports.core import crc32c

HEADER = struct.Struct("<IIIIQQQIBBH")
HEADER_SIZE = HEADER.size
_FIRST, _REST = struct.Struct("<II"), struct.Struct("<IIQQQIBBH")
MAGIC = 0x31474C54
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
#: most bytes of a body; larger payloads are blobs
MAX_BODY = 1 << 30
MAX_LAG = (1 << 32) - 1
_CHECKED = 8  # the CRC's first byte

#: place of a blob: segment, position, length, CRC-32C; precedes the body of a record with a blob
BLOB = struct.Struct("<QQQI")


class RecordKind(IntEnum):
    """The kind of a record.

    MESSAGE: a topic's message. STATE: a key with its value, or its removal. OPENED: the state before it is
    complete; every segment begins with all state and this record.
    """

    MESSAGE = 1
    STATE = 2
    OPENED = 3


_MESSAGE = int(RecordKind.MESSAGE)


class RecordFlag(IntFlag):
    """Flags of a record.

    HAS_BLOB: the body begins with BLOB. REMOVED: a key is removed. SNAPSHOT: repeated state. CARRIED: a
    message that compaction copied from an older segment, with its offset and time.
    """

    HAS_BLOB = 1
    REMOVED = 2
    SNAPSHOT = 4
    CARRIED = 8


class Record(NamedTuple):
    """A record and its position; `body` is a view of the memory that it was read from."""

    position: int
    kind: int
    flags: int
    topic: int
    sequence: int
    offset: int
    time: int
    lag: int
    body: memoryview

    @property
    def end(self) -> int:
        return self.position + HEADER_SIZE + len(self.body)


def encode(
    kind: int, flags: int, topic: int, sequence: int, offset: int, time: int, lag: int, body: bytes
) -> tuple[bytes, bytes, bytes]:
    """Encodes a record, in parts, so that the body is not copied. Limits lag to MAX_LAG."""
    if lag > MAX_LAG:
        lag = MAX_LAG
    rest = _REST.pack(len(body), topic, sequence, offset, time, lag, kind, flags, 0)
    return _FIRST.pack(MAGIC, crc32c(body, crc32c(rest))), rest, body


def encode_messages(
    messages: Iterable[tuple[int, int, bytes]], sequence: int, time: int, lag: int, position: int
) -> tuple[list[bytes], list[int], int]:
    """Encodes messages (topic, offset, body) without blobs, from this sequence, lag and position on.
    Returns their bytes in parts, the position of each message, and that after the last one."""
    pack, pack_first, kind = _REST.pack, _FIRST.pack, _MESSAGE
    chunks: list[bytes] = []
    positions: list[int] = []
    for topic, offset, body in messages:
        size = len(body)
        rest = pack(size, topic, sequence, offset, time, lag if lag < MAX_LAG else MAX_LAG, kind, 0, 0)
        chunks += (pack_first(MAGIC, crc32c(body, crc32c(rest))), rest, body)
        positions.append(position)
        position += HEADER_SIZE + size
        sequence += 1
        lag += 1
    return chunks, positions, position


def decode(memory: memoryview, position: int, *, verify: bool = True) -> Record | None:
    """Returns the record at a position; None: there is none, or it is incomplete, or (verify) damaged."""
    if len(memory) - position < HEADER_SIZE:
        return None
    magic, crc, length, topic, sequence, offset, time, lag, kind, flags, zero = HEADER.unpack_from(
        memory, position
    )
    end = position + HEADER_SIZE + length
    if magic != MAGIC or zero or length > MAX_BODY or end > len(memory):
        return None
    if verify and crc32c(memory[position + _CHECKED : end]) != crc:
        return None
    return Record(
        position, kind, flags, topic, sequence, offset, time, lag, memory[position + HEADER_SIZE : end]
    )


def scan(memory: memoryview, sequence: int, *, verify: bool = True) -> Iterator[Record]:
    """Yields the records from the first byte on, while they are whole and consecutive from `sequence` on."""
    position = 0
    while (record := decode(memory, position, verify=verify)) is not None and record.sequence == sequence:
        yield record
        position = record.end
        sequence += 1


def state_body(key: bytes, value: bytes) -> bytes:
    """Returns the body of a STATE record."""
    return b"".join((len(key).to_bytes(4, "little"), key, value))


def state_of(body: memoryview) -> tuple[bytes, bytes]:
    """Returns (key, value) of a STATE record's body."""
    data = bytes(body)
    end = 4 + int.from_bytes(data[:4], "little")
    return data[4:end], data[end:]


class Opening(NamedTuple):
    """The records that a segment begins with. last: position of the last one. sequence: of the last one."""

    data: bytearray
    last: int
    sequence: int


def opening(state: Iterable[tuple[bytes, bytes]], first: int) -> Opening:
    """Encodes the records that a segment begins with: all state, then OPENED."""
    pack, pack_first, kind, flags = _REST.pack, _FIRST.pack, int(RecordKind.STATE), int(RecordFlag.SNAPSHOT)
    data = bytearray()
    sequence = first
    for key, value in state:  # there may be millions, and other threads wait
        body = state_body(key, value)
        rest = pack(len(body), 0, sequence, 0, 0, 0, kind, flags, 0)
        data += b"".join((pack_first(MAGIC, crc32c(body, crc32c(rest))), rest, body))
        sequence += 1
    last = len(data)
    data += b"".join(encode(RecordKind.OPENED, 0, 0, sequence, 0, 0, 0, b""))
    return Opening(data, last, sequence)
