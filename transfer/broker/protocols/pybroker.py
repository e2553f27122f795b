"""PyBroker's wire format; big-endian. Pure.

    request   length 4 | command 1 | topic length 1 | topic | payload (PUBLISH) or offset 8 (FETCH)
    answer    length 4 | bytes                  to FETCH
    answer    0xFFFFFFFF | oldest 8             to FETCH of an offset that is not kept any more

length: of everything after the command, or the answer's own four bytes. PUBLISH has no answer.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from transfer.broker.core.topic_names import encode_topic, read_topic
from transfer.transports.arguments import number
from transfer.transports.errors import ProtocolError, UsageError

#: the default port of PyBroker
PORT = 9099
#: limit on the bytes of an answer, without its length
MAX_ANSWER = 1 << 20
#: in place of an answer's length: the offset is not kept any more
GONE = (1 << 32) - 1

_FIRST = struct.Struct(">IB")
_HEADER = struct.Struct(">IBB")  # with the topic's length, which every request has
_LEAST = 2  # bytes after the first five: the topic's length, and one of the topic
_LENGTH = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_MAX_LENGTH = (1 << 32) - 1
#: bytes of an answer with GONE
GONE_SIZE = _LENGTH.size + _OFFSET.size
#: bytes of an answer's length
LENGTH_SIZE = _LENGTH.size


class Command(IntEnum):
    """The command of a request."""

    PUBLISH = 1
    FETCH = 2


class Publish(NamedTuple):
    """A PUBLISH. size: bytes of the request in front of its payload. nbytes: of the payload."""

    topic: str
    size: int
    nbytes: int


class PyBrokerFetch(NamedTuple):
    """A FETCH. size: bytes of the request. offset: where the answer begins, in the topic's stream of
    bytes."""

    topic: str
    size: int
    offset: int


def read_request(data: memoryview, position: int = 0) -> Publish | PyBrokerFetch | None:
    """Reads the request that begins there, without its payload; None: more bytes are needed. It raises
    ProtocolError as early as the bytes show the error: type, length, topic."""
    here = len(data) - position
    if here < _FIRST.size:
        return None
    length, command = _FIRST.unpack_from(data, position)
    if command not in (Command.PUBLISH, Command.FETCH):
        raise ProtocolError("type", f"there is no command {command}")
    if length < _LEAST:
        raise ProtocolError("length", f"a request of {length} bytes has no topic")
    if here < _HEADER.size:
        return None
    topic_size = data[position + _FIRST.size]
    if not topic_size:
        raise ProtocolError("topic", "the topic is empty")
    nbytes = length - 1 - topic_size
    if nbytes < 0 or (command == Command.FETCH and nbytes != _OFFSET.size):
        raise ProtocolError("length", f"{length} bytes with a topic of {topic_size}")
    size = _HEADER.size + topic_size
    if here < size:
        return None
    topic = read_topic(data[position + _HEADER.size : position + size])
    if command == Command.PUBLISH:
        return Publish(topic, size, nbytes)
    if here < size + _OFFSET.size:
        return None
    return PyBrokerFetch(topic, size + _OFFSET.size, _OFFSET.unpack_from(data, position + size)[0])


def encode_publish(topic: str, nbytes: int) -> bytes:
    """Encodes the bytes in front of a payload. Raises UsageError: topic, size."""
    name = encode_topic(topic)
    length = 1 + len(name) + nbytes
    if length > _MAX_LENGTH:
        raise UsageError(
            f"a payload of {nbytes} bytes", hint=f"at most {_MAX_LENGTH - 1 - len(name)} with this topic"
        )
    return _HEADER.pack(length, Command.PUBLISH, len(name)) + name


def encode_fetch(topic: str, offset: int) -> bytes:
    """Encodes a whole request. Raises UsageError: the topic, or an offset that exceeds 64 bits."""
    if number(offset) is None or not 0 <= offset < 1 << 64:
        raise UsageError(f"the offset {offset!r:.40}", hint="0 and up, in 64 bits")
    name = encode_topic(topic)
    header = _HEADER.pack(1 + len(name) + _OFFSET.size, Command.FETCH, len(name))
    return b"".join((header, name, _OFFSET.pack(offset)))


def encode_length(nbytes: int) -> bytes:
    """Encodes the bytes in front of an answer of this size."""
    return _LENGTH.pack(nbytes)


def encode_gone(oldest: int) -> bytes:
    """Encodes a whole answer: the offset is not kept any more; `oldest` is the first later one that is."""
    return _LENGTH.pack(GONE) + _OFFSET.pack(oldest)


def read_length(data: bytes | bytearray | memoryview) -> int:
    """Reads an answer's length, or GONE. Raises ProtocolError if it exceeds MAX_ANSWER."""
    nbytes: int = _LENGTH.unpack_from(data)[0]
    if MAX_ANSWER < nbytes != GONE:
        raise ProtocolError("length", f"an answer of {nbytes} bytes exceeds the limit of {MAX_ANSWER}")
    return nbytes


def read_oldest(data: bytes | bytearray | memoryview) -> int:
    """Reads the offset after GONE."""
    oldest: int = _OFFSET.unpack_from(data)[0]
    return oldest
