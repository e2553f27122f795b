"""The content of a UCX message: frames as on any wire, but large payloads in separate messages.

    batch    taken (8) | frame | frame | ...       for the layout of frames see `transports/core/wire.py`
    payload  the data of the frame that a batch ended with, if it is LARGE bytes or more
    grant    taken (8)

taken: the total of batches and payloads of the other direction that were taken in.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfer.transports.core import Frame
from transfer.transports.core.frames import Head, check_header, encode_head, meta_length
from transfer.transports.core.message_size import Size
from transfer.transports.core.wire import (
    EXTENDED_MAX,
    HEADER,
    HEADER_SIZE,
    LAST_TYPE,
    MAGIC,
    MAX_TOPIC,
    VERSION,
    Flag,
)
from transfer.transports.errors import ProtocolError
from transfer.transports.sizes import LARGE

if TYPE_CHECKING:
    from transfer.transports.core.contract import Lease, OutFrame, Pool

#: a batch is sent when it holds so many bytes
FULL = 32 * 1024
#: no batch is longer: it was not full before its last frame
LONGEST = FULL + HEADER_SIZE + EXTENDED_MAX + MAX_TOPIC + LARGE
TAKEN = struct.Struct("<Q")

_TENSOR, _TOPIC, _MORE = int(Flag.TENSOR), int(Flag.TOPIC), int(Flag.MORE)
_CRC, _EXTENDED = int(Flag.CRC), int(Flag.EXTENDED)
_LAST_TYPE = int(LAST_TYPE)
_unpack = HEADER.unpack_from


def pack(frame: OutFrame, socket_type: int, sequence: int, more: bool, checksum: bool, size: int) -> bytes:
    """The frame's bytes in a batch: all of it, or without its data if that is LARGE or more."""
    flags, own_sequence, topic, meta, data = frame
    flags = int(flags)
    if flags == 0 and topic is None and not more and not checksum and size < LARGE:
        plain = HEADER.pack(MAGIC, VERSION, socket_type, 0, own_sequence or sequence, 0, size, 0)
        return plain + bytes(data)
    flags |= (_MORE if more else 0) | (_CRC if checksum else 0)
    head = encode_head(socket_type, flags, own_sequence or sequence, topic, meta, data, size)
    return head + data if size < LARGE else head


class Awaited(Head):
    """A frame whose data travels separately, with its place in its message."""

    __slots__ = ("index", "message")
    make = Frame

    def __init__(self, head: tuple[Any, ...], message: list[Any]) -> None:
        super().__init__(*head)
        self.message = message
        self.index = len(message)


class Unpacker:
    """Batches in, messages out. Not thread-safe; unusable after a ProtocolError.

    messages: the complete ones. awaited: the frame whose data comes next; `begin` it before the next batch.
    Several may be begun; `fill` passes their data in that order, and no message overtakes an incomplete one.
    `lease` makes writable memory for small tensors.
    """

    def __init__(self, max_message: int, pool: Pool) -> None:
        self.max_message = max_message
        self.messages: deque[list[Frame]] = deque()
        self.awaited: Awaited | None = None
        self._size = Size()
        self._parts: list[Any] = []  # frames; an Awaited stands for one without its data
        self._begun: deque[Awaited] = deque()
        self._behind: deque[list[Any]] = deque()  # messages with such, or after one
        self._lease: Callable[[int], Lease] = pool.lease

    @property
    def single(self) -> bool:
        """The awaited frame is a message by itself."""
        awaited = self.awaited
        return awaited is not None and not awaited.index and not awaited.flags & _MORE

    def feed(self, batch: bytes | bytearray) -> int:
        """Takes one batch and returns its `taken`. Raises ProtocolError."""
        end = len(batch)
        if self.awaited is not None or end < TAKEN.size:
            raise ProtocolError("length", f"a batch of {end} bytes, or in the place of a payload")
        position = TAKEN.size
        while position < end:
            if self.awaited is not None or end - position < HEADER_SIZE:
                raise ProtocolError("truncated", f"{end - position} bytes behind the last frame of a batch")
            magic, version, kind, flags, sequence, topic_size, length, check = _unpack(batch, position)
            position += HEADER_SIZE
            if (
                flags or topic_size or magic != MAGIC or version != VERSION or kind > _LAST_TYPE
                or length >= LARGE or length > self.max_message or self._parts or end - position < length
            ):  # fmt: skip
                position = self._rare(
                    batch, position, magic, version, kind, flags, sequence, topic_size, length, check
                )
                continue
            # The fast path of the common case: one small plain frame.
            data = bytes(batch[position : position + length])
            self._whole([Frame(data, sequence=sequence, socket_type=kind)])
            position += length
        return int(TAKEN.unpack_from(batch)[0])

    def begin(self) -> None:
        """The awaited frame's data is being received."""
        assert self.awaited is not None
        self._begun.append(self.awaited)
        self.awaited = None

    def fill(self, data: Any) -> None:
        """The data of the first frame that was begun. Raises ProtocolError."""
        begun, behind = self._begun, self._behind
        awaited = begun.popleft()
        awaited.message[awaited.index] = awaited.frame(data)
        first = begun[0] if begun else self.awaited
        while behind and (first is None or behind[0] is not first.message):
            self.messages.append(behind.popleft())

    def clear(self) -> None:
        """Drops all frames and messages."""
        for held in (self.messages, self._begun, self._behind, self._parts):
            held.clear()
        self.awaited = None

    def _rare(
        self, batch: bytes | bytearray, position: int, magic: int, version: int, kind: int, flags: int,
        sequence: int, topic_size: int, length: int, checksum: int,
    ) -> int:  # fmt: skip
        """Parses a frame of any shape after its header; returns the offset of the next one."""
        check_header(magic, version, kind, flags, topic_size, length, self.max_message)
        meta_size = meta_length(flags, batch, position, len(batch))
        here = length if length < LARGE else 0
        if meta_size < 0 or len(batch) - position < meta_size + topic_size + here:
            raise ProtocolError("truncated", "a frame is longer than its batch")
        meta = bytes(batch[position : position + meta_size]) if flags & _TENSOR else None
        position += meta_size
        topic = bytes(batch[position : position + topic_size]) if flags & _TOPIC else None
        position += topic_size
        self._size.add(flags, meta_size + topic_size + length, self.max_message)
        awaited = Awaited((flags, sequence, kind, length, checksum, meta, topic), self._parts)
        if length >= LARGE:
            self.awaited = awaited
            self._add(awaited)
            return position
        data: Any = bytes(batch[position : position + length])
        if flags & _TENSOR:  # received tensors are writable and own their memory
            lease = self._lease(length)
            memoryview(lease)[:] = data
            data = lease
        self._add(awaited.frame(data))
        return position + length

    def _add(self, frame: Frame | Awaited) -> None:
        self._parts.append(frame)
        if not frame.flags & _MORE:
            message, self._parts = self._parts, []
            self._whole(message)

    def _whole(self, message: list[Any]) -> None:
        waits = self._begun or self.awaited is not None
        (self._behind if waits else self.messages).append(message)
