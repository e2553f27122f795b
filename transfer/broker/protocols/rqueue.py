"""rqueue's wire format; big-endian. Pure.

every message length 4 | type 1 | payload of that length PUBLISH 0 length 4 | 0 | length 4 | 7 | topic length
1 | topic | content: a NOTIFICATION as the payload SUBSCRIBE 1 length 4 | 1 | topic length 1 | topic REMOVE 2
length 4 | 2 | topic length 1 | topic; with an empty payload it is DEREGISTER DEREGISTER 5 length 4 | 5
NOTIFICATION 7 length 4 | 7 | topic length 1 | topic | content; only the broker sends it
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from transfer.broker.core.topic_names import MAX_TOPIC, encode_topic, read_topic
from transfer.transports.errors import ProtocolError, UsageError

#: the default port of rqueue
PORT = 6567

_PREAMBLE = struct.Struct(">IB")
PREAMBLE_SIZE = _PREAMBLE.size
_TOPIC = struct.Struct(">IBB")  # a preamble and the topic's length
_PUBLISH = struct.Struct(">IBIBB")  # PUBLISH and the beginning of a NOTIFICATION
_PUBLISH_SIZE = _PUBLISH.size
_MAX_LENGTH = (1 << 32) - 1
_LEAST = 2  # bytes of a payload with a topic: the topic's length and at least one byte
#: limit on the bytes of a message's content, with a topic of one byte
MAX_CONTENT = _MAX_LENGTH - PREAMBLE_SIZE - 2


class Type(IntEnum):
    """The type of a message."""

    PUBLISH = 0
    SUBSCRIBE = 1
    REMOVE = 2
    DEREGISTER = 5
    NOTIFICATION = 7


_TYPES = {int(kind): kind for kind in Type}


class RqueueHead(NamedTuple):
    """A message without its content. topic: "" for DEREGISTER, also for a REMOVE with an empty payload.

    size: bytes in front of the content. nbytes: of the content, which only PUBLISH and NOTIFICATION have.
    """

    type: Type
    topic: str
    size: int
    nbytes: int


def read_head(data: bytes | bytearray | memoryview, position: int = 0) -> RqueueHead | None:
    """Reads the message that begins there, without its content; None: more bytes are needed.

    It raises ProtocolError as early as the bytes show the error: type, length, topic.
    """
    here = len(data) - position
    if here < PREAMBLE_SIZE:
        return None
    length, number = _PREAMBLE.unpack_from(data, position)
    if number == Type.PUBLISH:
        return _read_publish(data, position, here, length)
    kind = _TYPES.get(number)
    if kind is None:
        raise ProtocolError("type", f"there is no type {number}")
    if kind is Type.DEREGISTER or (kind is Type.REMOVE and not length):
        if length:
            raise ProtocolError("length", f"DEREGISTER with a payload of {length} bytes")
        return RqueueHead(Type.DEREGISTER, "", PREAMBLE_SIZE, 0)
    if length < _LEAST:
        raise ProtocolError("length", f"{kind.name} with a payload of {length} bytes has no topic")
    if kind is not Type.NOTIFICATION and length > 1 + MAX_TOPIC:
        raise ProtocolError("length", f"{kind.name} with a payload of {length} bytes")
    if here < _TOPIC.size:
        return None
    topic_size = data[position + PREAMBLE_SIZE]
    nbytes = _left(kind, length, topic_size)
    if nbytes and kind is not Type.NOTIFICATION:
        raise ProtocolError("length", f"{kind.name} with {nbytes} bytes after its topic")
    size = _TOPIC.size + topic_size
    if here < size:
        return None
    return RqueueHead(kind, read_topic(data[position + _TOPIC.size : position + size]), size, nbytes)


def encode_publish(topic: str, nbytes: int) -> bytes:
    """Encodes PUBLISH in front of a content of this size. Raises UsageError: topic, size."""
    name = encode_topic(topic)
    inner = 1 + len(name) + nbytes
    if not 0 <= inner <= _MAX_LENGTH - PREAMBLE_SIZE:
        raise _too_large(nbytes)
    outer = inner + PREAMBLE_SIZE
    return _PUBLISH.pack(outer, Type.PUBLISH, inner, Type.NOTIFICATION, len(name)) + name


def encode_notification(topic: str, nbytes: int) -> bytes:
    """Encodes NOTIFICATION in front of a content of this size. Raises UsageError: topic, size."""
    name = encode_topic(topic)
    length = 1 + len(name) + nbytes
    if not 0 <= length <= _MAX_LENGTH:
        raise _too_large(nbytes)
    return _TOPIC.pack(length, Type.NOTIFICATION, len(name)) + name


def encode_subscribe(topic: str) -> bytes:
    """Encodes a whole message. Raises UsageError: the topic."""
    name = encode_topic(topic)
    return _TOPIC.pack(1 + len(name), Type.SUBSCRIBE, len(name)) + name


def encode_remove(topic: str) -> bytes:
    """Encodes a whole message. Raises UsageError: the topic."""
    name = encode_topic(topic)
    return _TOPIC.pack(1 + len(name), Type.REMOVE, len(name)) + name


def encode_deregister() -> bytes:
    """Encodes a whole message."""
    return _PREAMBLE.pack(0, Type.DEREGISTER)


def _read_publish(
    data: bytes | bytearray | memoryview, position: int, here: int, outer: int
) -> RqueueHead | None:
    if outer < PREAMBLE_SIZE + _LEAST:
        raise ProtocolError("length", f"PUBLISH with a payload of {outer} bytes has no topic")
    if here < _PUBLISH_SIZE:
        return None
    _, _, inner, number, topic_size = _PUBLISH.unpack_from(data, position)
    if number != Type.NOTIFICATION:
        raise ProtocolError("type", f"PUBLISH of a message of type {number}, not of a NOTIFICATION")
    if outer != inner + PREAMBLE_SIZE:
        raise ProtocolError("length", f"PUBLISH of {outer} bytes with a NOTIFICATION of {inner}")
    nbytes = _left(Type.PUBLISH, inner, topic_size)
    size = _PUBLISH_SIZE + topic_size
    if here < size:
        return None
    return RqueueHead(
        Type.PUBLISH, read_topic(data[position + _PUBLISH_SIZE : position + size]), size, nbytes
    )


def _left(kind: Type, length: int, topic_size: int) -> int:
    """Returns the bytes after the topic."""
    if not topic_size:
        raise ProtocolError("topic", f"{kind.name} with an empty topic")
    nbytes = length - 1 - topic_size
    if nbytes < 0:
        raise ProtocolError("length", f"{kind.name} of {length} bytes with a topic of {topic_size}")
    return nbytes


def _too_large(nbytes: int) -> UsageError:
    return UsageError(f"a content of {nbytes} bytes", hint=f"at most {MAX_CONTENT} less the topic")
