"""The protocol of programs and the broker over transfer's own sockets (DEALER to ROUTER).

The first part of each message is a head; the parts after it are messages of topics:

    version 1 | op 1 | 0 2 | count 4 | number 8 | body

Little-endian. See docs/protocols/native.md. Pure: no sockets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from transfer.json_text import loads
from transfer.transports.errors import ProtocolError

VERSION = 1
_HEAD = struct.Struct("<BBHIQ")
_DELIVERY = struct.Struct("<QII")
#: limit on the letters of a NACK's reason; the rest is cut off
_MOST_REASON = 1000
#: limit on the bytes of a peer's head
LARGEST_HEAD = 1 << 20
#: limit on the numbers of messages and consumers, so that the next numbers fit, too
LARGEST_NUMBER = (1 << 63) - 1
#: REFUSED with this number is about no message: it has the reason why publishes are not answered yet
HELD_UP = LARGEST_NUMBER
#: limit on the messages of one PUBLISH or DELIVER
MOST = 10_000


class Op(IntEnum):
    """The operation of a head.

    From the program: PUBLISH one message (`number`) in the parts after the head; the body is its topic.
    PUBLISH_MANY: each part is a message, numbered from `number` on. JOIN a group as consumer `number`; LEAVE.
    ACK, NACK deliveries of consumer `number`. ALIVE: nothing else.

    From the broker: KEPT: `count` messages from `number` on. REFUSED: the request `number`. JOINED. DELIVER
    messages to consumer `number`. ACKED: the number of the consumer's deliveries that are done, which is on
    the disk. STALE: deliveries that the consumer no longer holds.

    SEVERAL and SEVERAL_FROM_BROKER hold commands of the program and of the broker, see `native_batch`. Large
    messages in pieces, see `native_pieces`: BEGIN, PIECE, END and GRANT to the broker, OFFER, FETCH and RANGE
    to the program. Programs that announce and find each other, see `native_registry`: REGISTER, RENEW,
    UNREGISTER and LOOK_UP from the program, REGISTERED, LISTED and CHANGED from the broker.
    """

    PUBLISH = 1
    PUBLISH_MANY = 2
    JOIN = 3
    LEAVE = 4
    ACK = 5
    NACK = 6
    ALIVE = 7
    SEVERAL = 8
    BEGIN = 9
    PIECE = 10
    END = 11
    FETCH = 12
    REGISTER = 13
    RENEW = 14
    UNREGISTER = 15
    LOOK_UP = 16
    KEPT = 17
    REFUSED = 18
    JOINED = 19
    DELIVER = 20
    ACKED = 21
    STALE = 22
    SEVERAL_FROM_BROKER = 23
    GRANT = 24
    OFFER = 25
    RANGE = 26
    REGISTERED = 27
    LISTED = 28
    CHANGED = 29


#: faster than `Op(number)`, for each message
_OPS = {int(op): op for op in Op}
_HEAD_SIZE = _HEAD.size


class Head(NamedTuple):
    """A head. amount: the number of its messages or deliveries."""

    op: Op
    number: int
    amount: int
    body: bytes


class Delivered(NamedTuple):
    """A delivery: offset, attempt. parts: of the message; 0: the message is gone."""

    offset: int
    attempt: int
    parts: int


def encode(op: Op, number: int, body: bytes = b"", count: int = 1) -> bytes:
    """Encodes a head."""
    return _HEAD.pack(VERSION, op, 0, count, number) + body


def decode(data: bytes) -> Head:
    """Decodes a peer's head. Raises ProtocolError."""
    if not _HEAD_SIZE <= len(data) <= LARGEST_HEAD:
        raise ProtocolError("head", f"a head of {len(data)} bytes")
    version, op, _, count, number = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ProtocolError("version", f"version {version} of the native protocol, not {VERSION}")
    if number > LARGEST_NUMBER:
        raise ProtocolError("number", f"number {number} exceeds the limit of {LARGEST_NUMBER}")
    if count > MOST and op != Op.KEPT:
        raise ProtocolError("count", f"{count} messages in one exceed the limit of {MOST}")
    known = _OPS.get(op)
    if known is None:
        raise ProtocolError("op", f"operation {op} is unknown")
    return Head(known, number, count, data[_HEAD_SIZE:])


def encode_deliveries(deliveries: Iterable[tuple[int, int, int]]) -> bytes:
    """Encodes deliveries: (offset, attempt, parts) each."""
    return b"".join(_DELIVERY.pack(*one) for one in deliveries)


def decode_deliveries(head: Head) -> list[Delivered]:
    """Decodes the deliveries of DELIVER or STALE. Raises ProtocolError."""
    return list(map(Delivered._make, _deliveries(head)))


def decode_ack(head: Head) -> list[tuple[int, int]]:
    """Decodes the deliveries of ACK: (offset, attempt) each. Raises ProtocolError."""
    return [(offset, attempt) for offset, attempt, _ in _deliveries(head)]


def _deliveries(head: Head) -> Iterable[tuple[int, int, int]]:
    if len(head.body) != head.amount * _DELIVERY.size:
        raise ProtocolError("deliveries", f"{len(head.body)} bytes for {head.amount} deliveries")
    return _DELIVERY.iter_unpack(head.body)


def encode_nack(delivery: Sequence[int], reason: str, *, retry: bool) -> bytes:
    """Encodes the body of a NACK of (offset, attempt). retry: another attempt may succeed."""
    return _DELIVERY.pack(delivery[0], delivery[1], int(retry)) + reason[:_MOST_REASON].encode()


def decode_nack(head: Head) -> tuple[int, int, bool, str]:
    """Decodes a NACK: (offset, attempt, retry, reason). Raises ProtocolError."""
    if len(head.body) < _DELIVERY.size:
        raise ProtocolError("nack", f"a body of {len(head.body)} bytes")
    offset, attempt, retry = _DELIVERY.unpack_from(head.body)
    text = head.body[_DELIVERY.size : _DELIVERY.size + 4 * _MOST_REASON]
    return offset, attempt, bool(retry), text.decode("utf-8", "replace")[:_MOST_REASON]


def encode_words(words: dict[str, Any]) -> bytes:
    """Encodes the JSON body of JOIN, JOINED, REFUSED."""
    return json.dumps(words, separators=(",", ":")).encode()


def decode_words(head: Head) -> dict[str, Any]:
    """Decodes a JSON body. Raises ProtocolError."""
    try:
        words = loads(bytes(head.body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("json", f"the body of {head.op.name} is not JSON: {error}") from error
    if not isinstance(words, dict):
        raise ProtocolError("json", f"the body of {head.op.name} is not an object")
    return words


class Join(NamedTuple):
    """A request to consume. window: messages that may be held at once. begin: where a new group starts: "new"
    (at messages from now on) or "old" (at the oldest). timeout: seconds that a delivery may be held; None:
    as long as the consumer is connected. pieces: large messages may be offered, and fetched in pieces.
    several: the program understands SEVERAL_FROM_BROKER."""

    topic: str
    group: str
    window: int = 64
    begin: str = "new"
    timeout: float | None = None
    pieces: bool = False
    several: bool = False


def encode_join(join: Join) -> bytes:
    """Encodes the body of a JOIN."""
    return encode_words(join._asdict())


def decode_join(head: Head) -> Join:
    """Decodes a JOIN. Raises ProtocolError."""
    words = decode_words(head)
    try:
        join = Join(**words)
    except TypeError as error:
        raise ProtocolError("join", f"a JOIN with unknown or missing fields: {error}") from error
    if not (_is_name(join.topic) and _is_name(join.group)):
        raise ProtocolError("join", "topic and group must be 1 to 255 bytes of UTF-8, without NUL")
    if type(join.window) is not int or not 1 <= join.window <= MOST:
        raise ProtocolError("join", f"a window of {join.window!r}, not 1 to {MOST}")
    if join.begin not in ("new", "old"):
        raise ProtocolError("join", f"begin={join.begin!r}, neither new nor old")
    timeout = join.timeout
    if timeout is not None and not (type(timeout) in (int, float) and 0 < timeout < 1e6):
        raise ProtocolError("join", f"a timeout of {timeout!r} seconds")
    for name in ("pieces", "several"):
        if type(getattr(join, name)) is not bool:
            raise ProtocolError("join", f"{name}={getattr(join, name)!r}, neither true nor false")
    return join


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        return 0 < len(name.encode()) <= 255
    except UnicodeEncodeError:
        return False
