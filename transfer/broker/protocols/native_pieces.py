"""Large messages in pieces between programs and the broker, as fast as the receiver takes them.

To the broker: BEGIN has the number of bytes, GRANT allows some of them, PIECEs bring them, END ends the
message. To the program: OFFER describes a message, FETCH allows some of its bytes, RANGEs bring them.
Little-endian. See docs/protocols/native.md. Pure: no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from transfer.broker.protocols.native import Head, Op, encode
from transfer.transports.core.wire import (
    EXTENDED_LENGTH,
    EXTENDED_MAX,
    EXTENDED_MIN,
    TENSOR_HEADER_SIZE,
    Flag,
)
from transfer.transports.errors import ProtocolError

#: messages from this size on are sent in pieces
LARGE_FROM = 8 << 20
#: bytes of a piece that this side sends
PIECE = 2 << 20

#: operations of messages that come in pieces
IN_PIECES = frozenset((Op.BEGIN, Op.PIECE, Op.END))

_BEGIN = struct.Struct("<QHH")
_NUMBER = struct.Struct("<Q")
_PLACE = struct.Struct("<QIIQ")
_PART = struct.Struct("<IQ")
_TENSOR, _EXTENDED = int(Flag.TENSOR), int(Flag.EXTENDED)


class Part(NamedTuple):
    """One part of a message. flags: of its frame, see `wire.Flag`. meta: its tensor header, or nothing."""

    flags: int
    meta: bytes
    nbytes: int


class Begin(NamedTuple):
    """A message that comes in pieces. nbytes: of all parts together. parts: packed by `pack_parts`."""

    topic: bytes
    nbytes: int
    parts: bytes


class Place(NamedTuple):
    """A position in a delivery: FETCH allows all bytes before `position`, RANGE begins there; in an OFFER it
    is the size."""

    offset: int
    attempt: int
    position: int


def pack_parts(parts: Iterable[Part]) -> bytes:
    """Packs the descriptions of a message's parts. Empty for one plain part."""
    parts = list(parts)
    if len(parts) == 1 and not parts[0].meta:
        return b""
    return b"".join(map(pack_part, parts))


def pack_part(part: Part) -> bytes:
    """Packs the description of one part."""
    flags, meta, nbytes = part
    return _PART.pack(flags << 24 | len(meta), nbytes) + meta


def unpack_parts(packed: bytes) -> list[Part]:
    """Unpacks descriptions of parts; none for one plain part. Raises ProtocolError."""
    found: list[Part] = []
    at = 0
    while at < len(packed):
        begin = at + _PART.size
        if begin > len(packed):
            raise ProtocolError("parts", "the description of the parts is cut short")
        what, nbytes = _PART.unpack_from(packed, at)
        at = begin + (what & 0xFFFFFF)
        if at > len(packed):
            raise ProtocolError("parts", "a tensor header is cut short")
        found.append(Part(what >> 24, packed[begin:at], nbytes))
    return found


def encode_begin(number: int, begin: Begin) -> bytes:
    """Encodes a BEGIN."""
    topic, nbytes, parts = begin
    return encode(Op.BEGIN, number, _BEGIN.pack(nbytes, len(topic), 0) + topic + parts)


def decode_begin(head: Head) -> Begin:
    """Decodes a BEGIN. Raises ProtocolError."""
    body = head.body
    if len(body) < _BEGIN.size:
        raise ProtocolError("begin", f"a BEGIN of {len(body)} bytes")
    nbytes, size, _ = _BEGIN.unpack_from(body)
    end = _BEGIN.size + size
    if end > len(body):
        raise ProtocolError("begin", "the topic of a BEGIN is cut short")
    begin = Begin(body[_BEGIN.size : end], nbytes, body[end:])
    _check_parts(begin)
    return begin


def _check_parts(begin: Begin) -> None:
    """Checks descriptions that the log keeps and the broker sends on unchanged: they must not cause errors
    later."""
    if not begin.nbytes:
        raise ProtocolError("length", "a message in pieces must have at least one byte")
    parts = unpack_parts(begin.parts)
    for flags, meta, _ in parts:
        if not _is_header(flags, meta):
            raise ProtocolError("parts", f"a part of flags {flags:#04x} with a header of {len(meta)} bytes")
    if parts and sum(part.nbytes for part in parts) != begin.nbytes:
        raise ProtocolError("parts", f"the parts do not have {begin.nbytes} bytes together")


def _is_header(flags: int, meta: bytes) -> bool:
    """Returns whether a frame can have these flags with this tensor header."""
    if flags == _TENSOR | _EXTENDED:
        size = len(meta)
        return EXTENDED_MIN <= size <= EXTENDED_MAX and EXTENDED_LENGTH.unpack_from(meta)[0] == size
    return (flags, len(meta)) in ((_TENSOR, TENSOR_HEADER_SIZE), (0, 0))


def encode_grant(number: int, position: int) -> bytes:
    """Encodes a GRANT: all bytes of the message before `position` may come."""
    return encode(Op.GRANT, number, _NUMBER.pack(position))


def decode_grant(head: Head) -> int:
    """Decodes a GRANT. Raises ProtocolError."""
    if len(head.body) != _NUMBER.size:
        raise ProtocolError("grant", f"a GRANT of {len(head.body)} bytes")
    position: int = _NUMBER.unpack(head.body)[0]
    return position


def encode_place(op: Op, number: int, place: Place, parts: bytes = b"") -> bytes:
    """Encodes an OFFER (with its parts), FETCH, or RANGE, of consumer `number`."""
    offset, attempt, position = place
    return encode(op, number, _PLACE.pack(offset, attempt, 0, position) + parts)


def decode_place(head: Head) -> tuple[Place, bytes]:
    """Decodes the place, and the descriptions of the parts. Raises ProtocolError."""
    if len(head.body) < _PLACE.size:
        raise ProtocolError("place", f"a body of {len(head.body)} bytes in {head.op.name}")
    offset, attempt, _, position = _PLACE.unpack_from(head.body)
    return Place(offset, attempt, position), head.body[_PLACE.size :]
