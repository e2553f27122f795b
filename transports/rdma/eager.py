"""The eager stream: frames of the common layout in buffers of 8 KiB. Pure.

The buffers of a connection are one stream of bytes. Small frames that wait at the same time share a buffer. A
frame that fits into a buffer is not cut, so only headers with a very long topic are cut.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple
from zlib import crc32

from transfer.transports.core import Frame
from transfer.transports.core.frames import check_header, encode_head, meta_length
from transfer.transports.core.wire import (
    EXTENDED_MAX,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    REFERENCE_BIT,
    VERSION,
    Flag,
    SocketType,
)
from transfer.transports.errors import ProtocolError

#: bytes of a buffer; a frame up to this size, header included, is eager
BUFFER = 8192

_TENSOR, _TOPIC, _CRC = int(Flag.TENSOR), int(Flag.TOPIC), int(Flag.CRC)
_EXTENDED, _NOT_PLAIN = int(Flag.EXTENDED), int(Flag.TENSOR | Flag.TOPIC | Flag.CRC | Flag.EXTENDED)


def encode(
    socket_type: int,
    flags: int,
    sequence: int,
    topic: bytes | None,
    meta: bytes | None,
    data: Any,
    refers: bool,
) -> bytes:
    """Encodes one whole frame. refers: `data` is an announcement. CRC in flags: the checksum is computed."""
    kind = socket_type | REFERENCE_BIT if refers else socket_type
    head = encode_head(kind, flags, sequence, topic, meta, data, len(data))
    return b"".join((head, data))


class WaitingSend:
    """Encoded frames that wait for a buffer, with marks of their owners."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[bytes, Any]] = deque()
        self._cut = 0  # bytes of the first piece that were sent already

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: bytes, mark: Any = None) -> None:
        """`fill` returns `mark` when the last byte of the piece was sent."""
        self._pieces.append((piece, mark))

    def fill(self, room: memoryview) -> tuple[int, list[Any]]:
        """Fills a buffer with waiting bytes: (bytes, marks of the complete pieces). Not called when empty."""
        used = 0
        marks: list[Any] = []
        while self._pieces:
            piece, mark = self._pieces[0]
            left = len(piece) - self._cut
            space = len(room) - used
            if left > space:
                if used and len(piece) <= len(room):
                    break  # it fits into the next one whole
                room[used:] = piece[self._cut : self._cut + space]
                self._cut += space
                return len(room), marks
            room[used : used + left] = piece[self._cut :] if self._cut else piece
            used += left
            self._cut = 0
            self._pieces.popleft()
            if mark is not None:
                marks.append(mark)
        return used, marks

    @property
    def cut(self) -> Any:
        """The mark of the piece of which a part was sent, or None."""
        return self._pieces[0][1] if self._cut else None


class Unit(NamedTuple):
    """A frame as received; refers: its data is an announcement."""

    frame: Frame
    refers: bool


def alone(data: memoryview, max_message: int) -> Frame | None:
    """The frame, if the buffer holds one plain frame and nothing else: the common case of small ones."""
    size = len(data) - HEADER_SIZE
    if size < 0:
        return None
    magic, version, kind, flags, sequence, topic_length, length, _ = HEADER.unpack_from(data)
    if (
        length != size or flags or topic_length or magic != MAGIC or version != VERSION
        or kind > _LAST_TYPE or size > max_message
    ):  # fmt: skip
        return None
    return Frame(bytes(data[HEADER_SIZE:]), sequence=sequence, socket_type=kind)


class Splitter:
    """Buffers in, frames out. Not thread-safe. Unusable after a ProtocolError."""

    def __init__(self, max_message: int) -> None:
        self.max_message = max_message
        self._rest = b""

    @property
    def inside(self) -> bool:
        """A frame has started and is not complete."""
        return bool(self._rest)

    def feed(self, data: memoryview) -> list[Unit]:
        """Returns all complete frames; their data is copied out of `data`. Raises ProtocolError."""
        if self._rest:
            data = memoryview(self._rest + bytes(data))
            self._rest = b""
        units: list[Unit] = []
        at, end = 0, len(data)
        while end - at >= HEADER_SIZE:
            after = self._one(data, at, end, units)
            if after < 0:
                break
            at = after
        if at < end:
            self._rest = bytes(data[at:])
        return units

    def _one(self, data: memoryview, at: int, end: int, units: list[Unit]) -> int:
        """Reads the frame at `at`; returns the offset of the next one, or -1: not complete yet."""
        magic, version, kind, flags, sequence, topic_length, length, checksum = HEADER.unpack_from(data, at)
        check_header(magic, version, kind, flags, topic_length, length, self.max_message, True)
        refers = kind >= REFERENCE_BIT
        start = at + HEADER_SIZE
        if not flags & _NOT_PLAIN:
            stop = start + length
            if stop > end:
                return self._incomplete(stop - at)
            payload = bytes(data[start:stop])
            units.append(
                Unit(
                    Frame(payload, flags=flags, sequence=sequence, socket_type=kind & ~REFERENCE_BIT), refers
                )
            )
            return int(stop)
        meta_size = meta_length(flags, data, start, end)
        if meta_size < 0:
            return -1
        stop = start + meta_size + topic_length + length
        if stop > end:
            return self._incomplete(stop - at)
        if flags & _CRC and crc32(data[start:stop]) != checksum:
            raise ProtocolError("checksum", f"CRC-32 is not {checksum:#x}, as the header says")
        meta = bytes(data[start : start + meta_size]) if flags & _TENSOR else None
        topic = bytes(data[start + meta_size : stop - length]) if flags & _TOPIC else None
        # Received tensors are writable.
        content = data[stop - length : stop]
        made = Frame(
            bytearray(content) if meta is not None and not refers else bytes(content),
            flags=flags,
            sequence=sequence,
            socket_type=kind & ~REFERENCE_BIT,
            topic=topic,
            meta=meta,
        )
        units.append(Unit(made, refers))
        return int(stop)

    def _incomplete(self, size: int) -> int:
        # Only a header may be longer than a buffer: data of such a size is announced.
        if size > _LONGEST:
            raise ProtocolError(
                "length", f"a frame of {size} bytes in the eager stream; {_LONGEST} are allowed"
            )
        return -1


_LAST_TYPE = int(max(SocketType))
_LONGEST = HEADER_SIZE + EXTENDED_MAX + 64 * 1024 + BUFFER
