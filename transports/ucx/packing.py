"""What a UCX message holds: frames as on any wire, but large payloads apart in messages of their own.

    batch    taken (8) | frame | frame | ...       the frames' layout stands in `transports/wire.py`
    payload  the data of the frame that a batch ended with, if it is APART bytes or more
    grant    taken (8)

taken: how many batches and payloads of the other direction were taken in so far.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from transports.core import Frame
from transports.errors import ProtocolError
from transports.twin.codec import check_header
from transports.wire import (
    EXTENDED_LENGTH,
    EXTENDED_MAX,
    EXTENDED_MIN,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAX_TOPIC,
    TENSOR_HEADER_SIZE,
    VERSION,
    Flag,
    SocketType,
)

if TYPE_CHECKING:
    from transports.core_contract import Lease, OutFrame, Pool

#: payloads from here on travel apart, in bytes
APART = 64 * 1024
#: a batch is sent when it holds so many bytes
FULL = 32 * 1024
#: nobody sends a longer one: it was not full before its last frame
LONGEST = FULL + HEADER_SIZE + EXTENDED_MAX + MAX_TOPIC + APART
TAKEN = struct.Struct("<Q")

_TENSOR, _TOPIC, _MORE = int(Flag.TENSOR), int(Flag.TOPIC), int(Flag.MORE)
_CRC, _EXTENDED = int(Flag.CRC), int(Flag.EXTENDED)
_LAST_TYPE = int(max(SocketType))
_unpack = HEADER.unpack_from


def pack(frame: OutFrame, socket_type: int, sequence: int, more: bool, checksum: bool, size: int) -> bytes:
    """The frame's bytes in a batch: all of it, or without its data if that is APART or more."""
    flags, own_sequence, topic, meta, data = frame
    flags = int(flags)
    if flags == 0 and topic is None and not more and not checksum and size < APART:
        plain = HEADER.pack(MAGIC, VERSION, socket_type, 0, own_sequence or sequence, 0, size, 0)
        return plain + bytes(data)
    between = meta or b""
    if more:
        flags |= _MORE
    if checksum:
        flags |= _CRC
    if topic is not None:
        flags |= _TOPIC
        between += topic
    check = crc32(data, crc32(between)) if flags & _CRC else 0
    topic_size = len(topic) if topic is not None else 0
    head = HEADER.pack(MAGIC, VERSION, socket_type, flags, own_sequence or sequence, topic_size, size, check)
    return b"".join((head, between, data)) if size < APART else head + between


class Awaited:
    """A frame whose data comes apart: everything but its data."""

    __slots__ = (
        "checksum", "flags", "index", "length", "message", "meta", "sequence", "socket_type", "topic",
    )  # fmt: skip

    def __init__(
        self, flags: int, sequence: int, socket_type: int, length: int, checksum: int,
        meta: bytes | None, topic: bytes | None, message: list[Any],
    ) -> None:  # fmt: skip
        #: the message that it belongs to, and its place in there
        self.message = message
        self.index = len(message)
        self.flags = flags
        self.sequence = sequence
        self.socket_type = socket_type
        self.length = length
        self.checksum = checksum
        self.meta = meta
        self.topic = topic

    def frame(self, data: Any) -> Frame:
        """The finished frame. Raises ProtocolError("checksum")."""
        if self.flags & _CRC:
            check = crc32(self.topic or b"", crc32(self.meta or b""))
            check = crc32(data, check)
            if check != self.checksum:
                raise ProtocolError("checksum", f"CRC-32 is {check:#x}, the header says {self.checksum:#x}")
        return Frame(
            data,
            flags=self.flags,
            sequence=self.sequence,
            socket_type=self.socket_type,
            topic=self.topic,
            meta=self.meta,
        )


class Unpacker:
    """Batches in, messages out. Not thread-safe; of no use after a ProtocolError.

    messages: those that are whole. awaited: the frame whose data comes next; `begin` it before the next
    batch. Several may be begun; `fill` gives them their data in that order, and no message passes one
    that is not filled. `lease` makes writable memory for small tensors.
    """

    def __init__(self, max_message: int, pool: Pool) -> None:
        self.max_message = max_message
        self.messages: deque[list[Frame]] = deque()
        self.awaited: Awaited | None = None
        self._parts: list[Any] = []  # frames; an Awaited in the place of one without its data
        self._begun: deque[Awaited] = deque()
        self._behind: deque[list[Any]] = deque()  # messages with such, or behind one
        self._lease: Callable[[int], Lease] = pool.lease

    @property
    def single(self) -> bool:
        """The awaited frame is a message by itself."""
        awaited = self.awaited
        return awaited is not None and not awaited.index and not awaited.flags & _MORE

    def feed(self, batch: bytes | bytearray) -> int:
        """Takes one batch; what it says of `taken`. Raises ProtocolError."""
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
                or length >= APART or length > self.max_message or self._parts or end - position < length
            ):  # fmt: skip
                position = self._rare(
                    batch, position, magic, version, kind, flags, sequence, topic_size, length, check
                )
                continue
            # The short way of the common case: one small plain frame.
            data = bytes(batch[position : position + length])
            self._whole([Frame(data, sequence=sequence, socket_type=kind)])
            position += length
        return int(TAKEN.unpack_from(batch)[0])

    def begin(self) -> None:
        """The awaited frame's data is on its way."""
        assert self.awaited is not None
        self._begun.append(self.awaited)
        self.awaited = None

    def fill(self, data: Any) -> None:
        """The data of the frame that was begun first. Raises ProtocolError."""
        begun, behind = self._begun, self._behind
        awaited = begun.popleft()
        awaited.message[awaited.index] = awaited.frame(data)
        first = begun[0] if begun else self.awaited
        while behind and (first is None or behind[0] is not first.message):
            self.messages.append(behind.popleft())

    def clear(self) -> None:
        """Forgets all that it has."""
        for held in (self.messages, self._begun, self._behind, self._parts):
            held.clear()
        self.awaited = None

    def _rare(
        self, batch: bytes | bytearray, position: int, magic: int, version: int, kind: int, flags: int,
        sequence: int, topic_size: int, length: int, checksum: int,
    ) -> int:  # fmt: skip
        """A frame of any shape, from behind its header on; where the next one begins."""
        check_header(magic, version, kind, flags, topic_size, length, self.max_message)
        meta_size = _meta_size(flags, batch, position)
        here = length if length < APART else 0
        if len(batch) - position < meta_size + topic_size + here:
            raise ProtocolError("truncated", "a frame is longer than its batch")
        meta = bytes(batch[position : position + meta_size]) if flags & _TENSOR else None
        position += meta_size
        topic = bytes(batch[position : position + topic_size]) if flags & _TOPIC else None
        position += topic_size
        awaited = Awaited(flags, sequence, kind, length, checksum, meta, topic, self._parts)
        if length >= APART:
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


def _meta_size(flags: int, batch: bytes | bytearray, position: int) -> int:
    """Bytes of the tensor header. Raises ProtocolError."""
    if not flags & _TENSOR:
        return 0
    if not flags & _EXTENDED:
        return TENSOR_HEADER_SIZE
    if len(batch) - position < EXTENDED_LENGTH.size:
        raise ProtocolError("truncated", "an extended tensor header without its length")
    (length,) = EXTENDED_LENGTH.unpack_from(batch, position)
    if not EXTENDED_MIN <= length <= EXTENDED_MAX:
        raise ProtocolError("tensor", f"an extended tensor header of {length} bytes")
    return int(length)
