"""TTP v2, the protocol of TensorMQ: a header of 32 bytes, then topic, metadata and data. Pure.

    magic 4 | version 2 | type 1 | flags 1 | stream id 8 | topic length 4 | metadata length 4 | data length 8

Big-endian. docs/protocols/ttp.md is the specification; it decides what the original leaves open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from transfer.json_text import check_plain, dumps, loads
from transfer.transports.errors import OptionError, ProtocolError

PORT = 59321
#: the protocol's name in TLS (ALPN)
ALPN = "ttp/2"
#: "TMQP"
MAGIC = 0x544D5150
VERSION = 2
HEADER = struct.Struct(">IHBBQIIQ")
HEADER_SIZE = HEADER.size

#: the stream ends with this frame
EOF = 0x01
#: the data are compressed; the broker does not decompress them
LZ4 = 0x02
#: the sender requests an ACK, or a HEARTBEAT in answer to one
WANTED = 0x80

#: the largest number of 64 bits
MOST_NUMBER = (1 << 64) - 1


class TtpKind(IntEnum):
    """The types of messages."""

    CONNECT = 1
    SUBSCRIBE = 2
    PUBLISH = 3
    META = 4
    CHUNK = 5
    ACK = 6
    HEARTBEAT = 7
    ERROR = 8


_ACK = int(TtpKind.ACK)


class TtpLimits(NamedTuple):
    """Limits on the bytes of a frame's parts, checked before anything is allocated."""

    topic: int = 255
    meta: int = 64 << 10
    data: int = 64 << 30


LIMITS = TtpLimits()


class Header(NamedTuple):
    """The first 32 bytes of a frame. Sizes in bytes."""

    kind: TtpKind
    flags: int
    stream_id: int
    topic_size: int
    meta_size: int
    data_size: int

    @property
    def data_at(self) -> int:
        """The position of the data, counted from the header's first byte."""
        return HEADER_SIZE + self.topic_size + self.meta_size


def decode_header(data: bytes | bytearray | memoryview, at: int = 0, limits: TtpLimits = LIMITS) -> Header:
    """Decodes the header at this place, of which all bytes must be there. Raises ProtocolError with a reason
    of magic, version, control (an unknown type), topic, length, too_large: the stream of bytes cannot be
    parsed from here on."""
    magic, version, kind, flags, stream_id, topic, meta, size = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise ProtocolError(
            "magic", f"a frame begins with {magic:08x}", hint="check that the peer speaks TTP"
        )
    if version != VERSION:
        raise ProtocolError("version", f"version {version} of TTP is not supported", hint="use version 2")
    if not TtpKind.CONNECT <= kind <= TtpKind.ERROR:
        raise ProtocolError("control", f"there is no type {kind}")
    if topic > limits.topic:
        raise ProtocolError("topic", f"a topic of {topic} bytes; {limits.topic} are allowed")
    if meta > limits.meta:
        raise ProtocolError("length", f"metadata of {meta} bytes; {limits.meta} are allowed")
    if size > limits.data:
        raise ProtocolError("too_large", f"data of {size} bytes; {limits.data} are allowed")
    return Header(TtpKind(kind), flags, stream_id, topic, meta, size)


def encode_head(
    kind: int, topic: bytes = b"", meta: bytes = b"", size: int = 0, flags: int = 0, stream_id: int = 0
) -> bytes:
    """Encodes a frame up to its data, of which `size` bytes follow."""
    head = HEADER.pack(MAGIC, VERSION, kind, flags, stream_id, len(topic), len(meta), size)
    return b"".join((head, topic, meta)) if topic or meta else head


def encode_acks(stream_ids: Iterable[int]) -> bytes:
    """Encodes an ACK for each of these frames."""
    acks = bytearray()
    for number in stream_ids:
        acks += HEADER.pack(MAGIC, VERSION, _ACK, 0, number, 0, 0, 0)
    return bytes(acks)


def decode_topic(topic: bytes) -> str:
    """Decodes a topic. Raises ProtocolError("topic") if it is not UTF-8."""
    try:
        return topic.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("topic", f"the topic is not UTF-8: {error.reason}") from None


def encode_meta(values: Mapping[str, Any]) -> bytes:
    """Encodes metadata as JSON; empty for none. Raises OptionError for what JSON does not have, keys that are
    no text too."""
    if not values:
        return b""
    try:
        check_plain(dict(values))
        return dumps(dict(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"the metadata cannot be represented in JSON: {error}") from error


def decode_meta(meta: bytes) -> dict[str, Any] | None:
    """Decodes metadata as JSON; None if they are something else, which is not an error."""
    if not meta:
        return {}
    try:
        values = loads(meta)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def encode_error(stream_id: int, code: str, message: str) -> bytes:
    """Encodes an ERROR frame about the frame with this stream id. code: a constant word."""
    data = encode_meta({"code": code, "message": message.encode(errors="replace").decode()})
    return encode_head(TtpKind.ERROR, size=len(data), stream_id=stream_id) + data


def decode_error(data: bytes) -> tuple[str, str]:
    """Decodes the code and the message of an ERROR frame's data; ("", text) if they are not its JSON."""
    values = decode_meta(data)
    if values is None or not isinstance(values.get("code"), str):
        return "", data.decode(errors="replace")
    return values["code"], str(values.get("message", ""))
