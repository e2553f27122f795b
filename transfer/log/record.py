"""A record of the log, as bytes; little-endian.

    magic 4 | CRC-32C 4 | length 4 | topic 4 | sequence 8 | offset 8 | time 8 | lag 4 | kind 1 | flags 1 | 0 2
    body of that length

The CRC covers all behind it. sequence: of the record in the log, each one higher than the last. offset: of a
message in its topic. time: nanoseconds since 1970. lag: how many records before this one were not known to be
synced when it was written; so a damaged record that later ones call synced is not a torn tail.
Pure: no files, no clock.
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
#: bytes of a body at most; larger payloads are blobs
MAX_BODY = 1 << 30
MAX_LAG = (1 << 32) - 1
_CHECKED = 8  # the CRC's first byte

#: where a blob lies: its segment, position, length, CRC-32C; in front of the body of a record that has one
BLOB = struct.Struct("<QQQI")


class Kind(IntEnum):
    """MESSAGE: of a topic. STATE: a key and its value, or its end. OPENED: the state before it is whole;
    every segment begins with all state and this."""

    MESSAGE = 1
    STATE = 2
    OPENED = 3


class Flag(IntFlag):
    """HAS_BLOB: the body begins with BLOB. REMOVED: a key's end. SNAPSHOT: state that is repeated.
    CARRIED: a message that lay in an older segment, with its offset and time."""

    HAS_BLOB = 1
    REMOVED = 2
    SNAPSHOT = 4
    CARRIED = 8


class Record(NamedTuple):
    """A record and where it begins; `body` is a view of the bytes that it was read from."""

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
    """The bytes of one record, in parts, so that no body is copied. lag beyond what fits counts as the most
    that does."""
    if lag > MAX_LAG:
        lag = MAX_LAG
    rest = _REST.pack(len(body), topic, sequence, offset, time, lag, kind, flags, 0)
    return _FIRST.pack(MAGIC, crc32c(body, crc32c(rest))), rest, body


def encode_messages(
    messages: Iterable[tuple[int, int, bytes]], sequence: int, time: int, lag: int
) -> tuple[list[bytes], list[int]]:
    """Messages without a blob, (topic, offset, body) each, from this sequence and lag on: their bytes in
    parts, and where each begins among them."""
    pack, pack_first, kind = _REST.pack, _FIRST.pack, int(Kind.MESSAGE)
    chunks: list[bytes] = []
    positions: list[int] = []
    position = 0
    for topic, offset, body in messages:
        size = len(body)
        rest = pack(size, topic, sequence, offset, time, lag if lag < MAX_LAG else MAX_LAG, kind, 0, 0)
        chunks += (pack_first(MAGIC, crc32c(body, crc32c(rest))), rest, body)
        positions.append(position)
        position += HEADER_SIZE + size
        sequence += 1
        lag += 1
    return chunks, positions


def decode(memory: memoryview, position: int, *, verify: bool = True) -> Record | None:
    """The record that begins there, or None: there is none, or it is not whole, or (verify) damaged."""
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
    """The records from the first byte on, as long as they are whole and follow each other from `sequence`."""
    position = 0
    while (record := decode(memory, position, verify=verify)) is not None and record.sequence == sequence:
        yield record
        position = record.end
        sequence += 1


def state_body(key: bytes, value: bytes) -> bytes:
    """A STATE record's body."""
    return b"".join((len(key).to_bytes(4, "little"), key, value))


def state_of(body: memoryview) -> tuple[bytes, bytes]:
    """(key, value) of a STATE record's body."""
    data = bytes(body)
    end = 4 + int.from_bytes(data[:4], "little")
    return data[4:end], data[end:]


class Opening(NamedTuple):
    """What a segment begins with. last: where the last of these records begins. sequence: that one's."""

    data: bytearray
    last: int
    sequence: int


def opening(state: Iterable[tuple[bytes, bytes]], first: int) -> Opening:
    """What a segment begins with, all state and the word that it is whole: the bytes, and where the last of
    these records begins, and its sequence."""
    pack, pack_first, kind, flags = _REST.pack, _FIRST.pack, int(Kind.STATE), int(Flag.SNAPSHOT)
    data = bytearray()
    sequence = first
    for key, value in state:  # there may be millions, and all others wait
        body = state_body(key, value)
        rest = pack(len(body), 0, sequence, 0, 0, 0, kind, flags, 0)
        data += b"".join((pack_first(MAGIC, crc32c(body, crc32c(rest))), rest, body))
        sequence += 1
    last = len(data)
    data += b"".join(encode(Kind.OPENED, 0, 0, sequence, 0, 0, 0, b""))
    return Opening(data, last, sequence)
