"""Several commands of the native protocol in one message: their heads in the body, their parts after it.

    for each: length of its head 4 | its parts 4 | head

Little-endian. See docs/protocols/native.md. Pure: no sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from transfer.broker.protocols.native import LARGEST_HEAD, MOST, Head, Op, decode, encode
from transfer.transports.errors import ProtocolError

_WORD = struct.Struct("<II")
#: bytes that each command takes in addition to its head
WORD_COST = _WORD.size
#: limit on the bytes of all heads together
LARGEST_BODY = LARGEST_HEAD - 64


def encode_several(op: Op, words: Sequence[tuple[bytes, int]]) -> bytes:
    """Encodes a head for commands, (head, number of its parts) each. op: SEVERAL or SEVERAL_FROM_BROKER."""
    pieces: list[bytes] = []
    for head, parts in words:
        pieces += (_WORD.pack(len(head), parts), head)
    return encode(op, 0, b"".join(pieces), len(words))


def decode_several(head: Head, parts: int) -> list[tuple[Head, slice]]:
    """Decodes the commands of such a head, and where their parts are among all `parts`. Raises ProtocolError,
    before any command is handled."""
    found: list[tuple[Head, slice]] = []
    body, at, begin = head.body, 0, 0
    if head.amount > MOST:
        raise ProtocolError("several", f"{head.amount} commands in one message exceed the limit of {MOST}")
    for _ in range(head.amount):
        if at + _WORD.size > len(body):
            raise ProtocolError("several", f"{len(found)} commands came, {head.amount} were announced")
        size, count = _WORD.unpack_from(body, at)
        at += _WORD.size
        if at + size > len(body) or begin + count > parts:
            raise ProtocolError("several", "a command exceeds its message")
        one = decode(body[at : at + size])
        if one.op in (Op.SEVERAL, Op.SEVERAL_FROM_BROKER):
            raise ProtocolError("several", "a batch of commands within a batch")
        found.append((one, slice(begin, begin + count)))
        at += size
        begin += count
    if at != len(body) or begin != parts:
        raise ProtocolError("several", "bytes or parts are left over after the commands")
    return found
