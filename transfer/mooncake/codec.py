"""MessageCodec: the bytes of one message, for programs that read and write a connection themselves.

The format is that of `docs/wire.md`, which a peer may use without a hello: header of 34 bytes, tensor header,
topic, data. The sockets do not use this module: they have other codecs.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from transfer.mooncake.message import encode_data
from transfer.mooncake.types import ZmqSocketType, as_socket_type
from transfer.tensors.build import NUMPY, check_length, recipe_for
from transfer.tensors.export import export
from transfer.transports.arguments import octets, whole
from transfer.transports.core.wire import (
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
)
from transfer.transports.errors import ArgumentError, NotATensor, ProtocolError

#: the flags of a message of one uncompressed part
_PLAIN = Flag.TENSOR | Flag.TOPIC | Flag.ACK | Flag.CRC | Flag.EXTENDED


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """The first 34 bytes. Lengths in bytes; `checksum` is valid if `has_checksum`."""

    socket_type: ZmqSocketType
    flags: int
    sequence_id: int
    topic_length: int
    data_length: int
    checksum: int

    @property
    def is_tensor(self) -> bool:
        return bool(self.flags & Flag.TENSOR)

    @property
    def has_topic(self) -> bool:
        return bool(self.flags & Flag.TOPIC)

    @property
    def has_checksum(self) -> bool:
        return bool(self.flags & Flag.CRC)


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message. data: a view of the input. nbytes: of the message; the next one begins there."""

    header: MessageHeader
    topic: str
    data: memoryview
    nbytes: int


@dataclass(frozen=True, slots=True)
class DecodedTensor:
    """A message with a tensor: a writable numpy array, copied."""

    header: MessageHeader
    topic: str
    tensor: Any
    nbytes: int


class MessageCodec:
    """Encodes and decodes complete messages of one part. All methods are static and thread-safe."""

    @staticmethod
    def encode_data_message(
        socket_type: ZmqSocketType | int | str,
        data: Any,
        topic: str | bytes | None = None,
        sequence_id: int = 0,
        *,
        checksum: bool = False,
    ) -> bytes:
        """Encodes bytes, text (as UTF-8) or a buffer.

        Args:
            socket_type: the sender's type.
            data: the payload.
            topic: the topic, or None.
            sequence_id: the number of a request, and of its reply.
            checksum: True adds one; only for peers that check it.

        Raises:
            ArgumentError, OptionError: an argument is not valid.
        """
        payload = encode_data(data)
        return _encode(socket_type, 0, b"", _flat(payload), topic, sequence_id, checksum)

    @staticmethod
    def encode_tensor_message(
        socket_type: ZmqSocketType | int | str,
        tensor: Any,
        topic: str | bytes | None = None,
        sequence_id: int = 0,
        *,
        checksum: bool = False,
    ) -> bytes:
        """Encodes a tensor: numpy, torch, or any object with DLPack or the buffer protocol. Arguments and
        errors as `encode_data_message`; raises NotATensor."""
        flags, meta, data = export(tensor)
        return _encode(socket_type, flags, meta, _flat(data), topic, sequence_id, checksum)

    @staticmethod
    def decode_header(data: Any) -> MessageHeader | None:
        """Decodes the header at the beginning of `data` (any buffer). None: more bytes are needed. Raises
        ProtocolError if it is no message."""
        view = _view(data)
        return None if len(view) < HEADER_SIZE else _header(view)

    @staticmethod
    def decode_message(data: Any) -> DecodedMessage | None:
        """Decodes the message at the beginning of `data`. None: more bytes are needed. A tensor's data are
        its bytes. Raises ProtocolError: no message, a wrong checksum, several parts, or compressed."""
        split = _split(_view(data))
        if split is None:
            return None
        header, _, topic, payload, end = split
        return DecodedMessage(header, topic, payload, end)

    @staticmethod
    def decode_tensor_message(data: Any) -> DecodedTensor | None:
        """As `decode_message`, for a tensor. Raises NotATensor for another message."""
        split = _split(_view(data))
        if split is None:
            return None
        header, meta, topic, payload, end = split
        if not header.is_tensor:
            raise NotATensor("a message without a tensor", hint="decode_message reads it")
        recipe = recipe_for(meta)
        check_length(recipe, len(payload))
        return DecodedTensor(header, topic, NUMPY.build(recipe, bytearray(payload)), end)


def _encode(
    socket_type: ZmqSocketType | int | str,
    flags: int,
    meta: bytes,
    data: memoryview,
    topic: str | bytes | None,
    sequence: int,
    checksum: bool,
) -> bytes:
    kind = as_socket_type(socket_type)
    name = b"" if topic is None else octets(topic, "topic")
    if len(name) > MAX_TOPIC:
        raise ArgumentError(f"a topic of {len(name)} bytes, it has {MAX_TOPIC} at most")
    whole(sequence, "sequence_id", 0, 2**64 - 1)
    flags |= (Flag.TOPIC if topic is not None else 0) | (Flag.CRC if checksum else 0)
    crc = zlib.crc32(data, zlib.crc32(name, zlib.crc32(meta))) if checksum else 0
    return b"".join(
        (HEADER.pack(MAGIC, VERSION, kind, flags, sequence, len(name), len(data), crc), meta, name, data)
    )


def _flat(data: Any) -> memoryview:
    view = memoryview(data)
    if not view.nbytes:  # an array with an empty axis cannot be cast
        return memoryview(b"")
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes("A"))


def _view(data: Any) -> memoryview:
    try:
        return _flat(data)
    except (TypeError, ValueError) as error:
        raise ArgumentError("bytes to decode have the buffer protocol, in one piece") from error


def _header(view: memoryview) -> MessageHeader:
    magic, version, kind, flags, sequence, topic, length, checksum = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise ProtocolError("magic", "the first bytes are not those of a message")
    if version != VERSION:
        raise ProtocolError("version", f"a message of version {version}; this side supports {VERSION}")
    alone = (flags & Flag.EXTENDED and not flags & Flag.TENSOR) or (topic and not flags & Flag.TOPIC)
    if flags & ~int(_PLAIN) or kind > max(ZmqSocketType) or alone:
        raise ProtocolError(
            "flags",
            f"flags {flags:#04x} of socket type {kind}: control, one part of several, or compressed",
            hint="peers without a hello receive none of these; sockets read them",
        )
    if topic > MAX_TOPIC:
        raise ProtocolError("length", f"a topic of {topic} bytes")
    return MessageHeader(ZmqSocketType(kind), flags, sequence, topic, length, checksum)


def _tensor_header_length(view: memoryview, header: MessageHeader) -> int | None:
    """Returns the length; None: more bytes are needed. Raises ProtocolError."""
    if not header.is_tensor:
        return 0
    if not header.flags & Flag.EXTENDED:
        return TENSOR_HEADER_SIZE
    if len(view) < HEADER_SIZE + EXTENDED_LENGTH.size:
        return None
    length: int = EXTENDED_LENGTH.unpack_from(view, HEADER_SIZE)[0]
    if not EXTENDED_MIN <= length <= EXTENDED_MAX:
        raise ProtocolError("tensor", f"a tensor header of {length} bytes")
    return length


def _split(view: memoryview) -> tuple[MessageHeader, bytes, str, memoryview, int] | None:
    """Returns (header, tensor header, topic, data, end of the message); None: more bytes are needed."""
    if len(view) < HEADER_SIZE:
        return None
    header = _header(view)
    length = _tensor_header_length(view, header)
    if length is None:
        return None
    start = HEADER_SIZE + length
    at = start + header.topic_length
    end = at + header.data_length
    if len(view) < end:
        return None
    if header.has_checksum and zlib.crc32(view[HEADER_SIZE:end]) != header.checksum:
        raise ProtocolError("checksum", "the message is damaged: its CRC-32 differs")
    try:
        topic = bytes(view[start:at]).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("topic", "a topic that is no UTF-8") from error
    return header, bytes(view[HEADER_SIZE:start]), topic, view[at:end], end
