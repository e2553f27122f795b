"""The messages of the rdma transport on the TCP connection next to its queue pair. Pure.

Each is one control frame: kind, word, numbers. It needs no credit, so it cannot deadlock.

| word | numbers | meaning |
|---|---|---|
| GRANT | u64 | the total of eager buffers that this side has granted |
| DONE | u32, ... | this side has READ these announcements: their memory is free again |
| ASK | u32 | asks whether the peer still needs this announcement |
| HELD | u32 | the answer: the application has not received it yet |
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from transfer.transports.core.wire import Control, Flag
from transfer.transports.errors import ProtocolError

_HEAD = struct.Struct("<BB")
_TOTAL = struct.Struct("<BBQ")
_NUMBER = struct.Struct("<I")
#: the most numbers in one DONE
MOST = 1024
_FLAGS = int(Flag.CONTROL)


class Word(IntEnum):
    GRANT = 1
    DONE = 2
    ASK = 3
    HELD = 4


class RdmaControlMessage(NamedTuple):
    """A control message: its word, and its numbers."""

    word: Word
    numbers: tuple[int, ...]


def grant(total: int) -> bytes:
    return _TOTAL.pack(Control.RDMA, Word.GRANT, total)


def encode(word: Word, *numbers: int) -> bytes:
    """Encodes DONE, ASK or HELD."""
    return _HEAD.pack(Control.RDMA, word) + b"".join(map(_NUMBER.pack, numbers))


def frame(data: bytes) -> tuple[int, int, None, None, bytes]:
    """The OutFrame of a control message."""
    return _FLAGS, 0, None, None, data


def is_ours(data: bytes) -> bool:
    return data[0] == Control.RDMA


def decode(data: bytes) -> RdmaControlMessage:
    """Decodes a control message. Raises ProtocolError("control")."""
    if len(data) < _HEAD.size:
        raise ProtocolError("control", "a word of the rdma transport is too short")
    word = data[1]
    if word == Word.GRANT and len(data) == _TOTAL.size:
        return RdmaControlMessage(Word.GRANT, (_TOTAL.unpack(data)[2],))
    count, rest = divmod(len(data) - _HEAD.size, _NUMBER.size)
    single = word in (Word.ASK, Word.HELD)
    if rest or not (single or word == Word.DONE) or not 1 <= count <= (1 if single else MOST):
        raise ProtocolError("control", f"word {word} of the rdma transport with {len(data)} bytes")
    return RdmaControlMessage(Word(word), struct.unpack_from(f"<{count}I", data, _HEAD.size))
