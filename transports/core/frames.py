"""Frames as bytes: what streams in Python share, the twin's and those of other transports. Without I/O.

For the layout see `transports/core/wire.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from transfer.transports.core.buffers import flat_view
from transfer.transports.core.wire import (
    EXTENDED_LENGTH,
    EXTENDED_MAX,
    EXTENDED_MIN,
    HEADER,
    LAST_TYPE,
    MAGIC,
    MAX_CONTROL,
    MAX_FRAMES,
    MAX_TOPIC,
    REFERENCE_BIT,
    REFERENCE_SIZE,
    TENSOR_HEADER_SIZE,
    VERSION,
    Flag,
)
from transfer.transports.errors import ProtocolError, UsageError, not_a_buffer

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame, Sink

# Plain integers: arithmetic on IntFlag costs more than the rest of a small frame.
_TENSOR, _TOPIC, _CONTROL = int(Flag.TENSOR), int(Flag.TOPIC), int(Flag.CONTROL)
_CRC, _EXTENDED = int(Flag.CRC), int(Flag.EXTENDED)
_LAST_TYPE = int(LAST_TYPE)


def payload_of(data: Any) -> bytes | memoryview:
    """Data of a frame to send as bytes, or as a flat view that keeps it exported.

    Raises ArgumentError for an object without a buffer, BufferError for memory in pieces.
    """
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        raise not_a_buffer(data)
    try:
        return flat_view(data)
    except TypeError:
        raise not_a_buffer(data) from None


def normalize(
    frames: Sequence[OutFrame], payload: Callable[[Any], bytes | memoryview] = payload_of
) -> list[OutFrame]:
    """The same frames with payloads that `payload` made writable. Raises UsageError for frames that cannot be
    sent."""
    if not frames:
        raise UsageError("a message has at least one part")
    if len(frames) > MAX_FRAMES:
        raise UsageError(f"a message of {len(frames)} parts, it has 1 to {MAX_FRAMES}")
    result: list[OutFrame] = []
    for flags, sequence, topic, meta, data in frames:
        if topic is not None and len(topic) > MAX_TOPIC:
            raise UsageError(f"a topic has at most {MAX_TOPIC} bytes, this one {len(topic)}")
        if (meta is not None) != bool(flags & _TENSOR):
            raise UsageError("the flag TENSOR and a tensor header go together")
        result.append((flags, sequence, topic, meta, payload(data)))
    return result


def encode_head(
    kind: int, flags: int, sequence: int, topic: bytes | None, meta: bytes | None, data: Any, length: int
) -> bytes:
    """A frame without its data of `length` bytes, which is read only for a checksum (CRC in flags)."""
    between = meta or b""
    if topic is not None:
        flags |= _TOPIC
        between += topic
    check = crc32(data, crc32(between)) if flags & _CRC else 0
    head = HEADER.pack(MAGIC, VERSION, kind, flags & 0xFF, sequence, len(topic or b""), length, check)
    return head + between


class Head:
    """A frame whose header, tensor header and topic have arrived, and its data not entirely."""

    __slots__ = ("checksum", "flags", "length", "meta", "sequence", "socket_type", "topic")
    #: the class of frames
    make: ClassVar[Any]

    def __init__(
        self, flags: int, sequence: int, socket_type: int, length: int, checksum: int,
        meta: bytes | None, topic: bytes | None,
    ) -> None:  # fmt: skip
        self.flags = flags
        self.sequence = sequence
        self.socket_type = socket_type
        self.length = length
        self.checksum = checksum
        self.meta = meta
        self.topic = topic

    def frame(self, data: Any) -> Any:
        """The complete frame. Raises ProtocolError when the checksum is wrong."""
        if self.flags & _CRC:
            check = crc32(self.meta or b"")
            check = crc32(data, crc32(self.topic or b"", check))
            if check != self.checksum:
                raise ProtocolError("checksum", f"CRC-32 is {check:#x}, the header says {self.checksum:#x}")
        return self.make(
            data,
            flags=self.flags,
            sequence=self.sequence,
            socket_type=self.socket_type,
            topic=self.topic,
            meta=self.meta,
        )


def check_header(
    magic: int,
    version: int,
    socket_type: int,
    flags: int,
    topic_length: int,
    data_length: int,
    max_message: int,
    references: bool = False,
) -> None:
    """Refuses invalid headers before it allocates anything for them. Raises ProtocolError."""
    if magic != MAGIC:
        raise ProtocolError("magic", f"magic {magic:#010x}", hint="is the peer another protocol?")
    if version != VERSION:
        raise ProtocolError("version", f"version {version} of the wire format, {VERSION} is spoken here")
    refers = bool(socket_type & REFERENCE_BIT)
    if refers and (not references or flags & _CONTROL or data_length != REFERENCE_SIZE):
        raise ProtocolError("flags", "a reference to a payload that this connection cannot have")
    if socket_type & ~REFERENCE_BIT > _LAST_TYPE:
        raise ProtocolError("flags", f"socket type {socket_type}")
    if flags & _EXTENDED and not flags & _TENSOR:
        raise ProtocolError("flags", "an extended tensor header without a tensor")
    if topic_length > MAX_TOPIC or (topic_length and not flags & _TOPIC):
        raise ProtocolError("topic", f"a topic of {topic_length} bytes with flags {flags:#x}")
    if data_length >> 63:
        raise ProtocolError("length", f"a length of {data_length} bytes")
    if flags & _CONTROL:
        # Its first byte is the kind, so there is at least one.
        if flags & ~(_CONTROL | _CRC) or not 1 <= data_length <= MAX_CONTROL:
            raise ProtocolError("control", f"a control frame with flags {flags:#x} and {data_length} bytes")
    elif data_length > max_message:
        raise ProtocolError(
            "too_large", f"{data_length} bytes, the limit is {max_message}", hint="raise maxmsgsize"
        )


def meta_length(flags: int, data: bytes | bytearray | memoryview, start: int, end: int) -> int:
    """Bytes of the tensor header at `start`; -1 if that is not known yet. Raises ProtocolError."""
    if not flags & _TENSOR:
        return 0
    if not flags & _EXTENDED:
        return TENSOR_HEADER_SIZE
    if end - start < EXTENDED_LENGTH.size:
        return -1
    (length,) = EXTENDED_LENGTH.unpack_from(data, start)
    if not EXTENDED_MIN <= length <= EXTENDED_MAX:
        raise ProtocolError("tensor", f"an extended tensor header of {length} bytes")
    return int(length)


def chosen(sink: Sink, meta: bytes | None, topic: bytes | None, nbytes: int) -> Any:
    """The sink's buffer, or None. Raises UsageError if it does not fit."""
    buffer = sink(meta, topic, nbytes)
    if buffer is not None:
        view = flat_view(buffer)
        if view.readonly or view.nbytes != nbytes:
            raise UsageError(f"the sink gave {view.nbytes} bytes (read-only: {view.readonly}) for {nbytes}")
    return buffer
