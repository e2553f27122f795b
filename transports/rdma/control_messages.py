"""What the rdma transport says on the TCP connection beside its queue pair. Pure.

One control frame each: kind, word, numbers. It needs no credit, so it cannot deadlock.

| word | numbers | says |
|---|---|---|
| GRANT | u64 | so many of my eager buffers were yours in all |
| DONE | u32, ... | I have READ these announcements: their memory is yours again |
| ASK | u32 | do you still want this announcement? |
| HELD | u32 | I do: my application has not come to it |
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
#: numbers in one DONE
MOST = 1024
_FLAGS = int(Flag.CONTROL)


class Word(IntEnum):
    GRANT = 1
    DONE = 2
    ASK = 3
    HELD = 4


class Said(NamedTuple):
    """word, and its numbers."""

    word: Word
    numbers: tuple[int, ...]


def grant(total: int) -> bytes:
    return _TOTAL.pack(Control.RDMA, Word.GRANT, total)


def about(word: Word, *numbers: int) -> bytes:
    """DONE, ASK or HELD."""
    return _HEAD.pack(Control.RDMA, word) + b"".join(map(_NUMBER.pack, numbers))


def frame(data: bytes) -> tuple[int, int, None, None, bytes]:
    """The OutFrame for it."""
    return _FLAGS, 0, None, None, data


def is_ours(data: bytes) -> bool:
    return data[0] == Control.RDMA


def decode(data: bytes) -> Said:
    """Raises ProtocolError("control")."""
    if len(data) < _HEAD.size:
        raise ProtocolError("control", "a word of the rdma transport is too short")
    word = data[1]
    if word == Word.GRANT and len(data) == _TOTAL.size:
        return Said(Word.GRANT, (_TOTAL.unpack(data)[2],))
    count, rest = divmod(len(data) - _HEAD.size, _NUMBER.size)
    single = word in (Word.ASK, Word.HELD)
    if rest or not (single or word == Word.DONE) or not 1 <= count <= (1 if single else MOST):
        raise ProtocolError("control", f"word {word} of the rdma transport with {len(data)} bytes")
    return Said(Word(word), struct.unpack_from(f"<{count}I", data, _HEAD.size))
