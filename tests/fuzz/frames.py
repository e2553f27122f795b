"""Conversations in transfer's own frames: a hello, and frames of every kind behind it. Pure, by seed."""

from __future__ import annotations

import json
import random
import struct

from tests.core.raw_frames import CRC, EXTENDED, EXTENDED_META, META, MORE, TENSOR, TOPIC, Raw
from tests.fuzz.mutations import name, number, payload, rewritten
from transfer.transports.core.wire import (
    CREDIT,
    HEADER_SIZE,
    REFERENCE,
    REFERENCE_BIT,
    TYPES_ON_WIRE,
    Control,
    Flag,
    SocketType,
)
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.upgrade import encode as encode_step

_CONTROL = int(Flag.CONTROL)
#: codes and shapes of tensor headers, and what is none
_SHAPES = ((0, 0, 0, 0), (2, 0, 0, 0), (1 << 62, 4, 0, 0), (-1, 1, 0, 0), (1 << 31, 1 << 31, 1, 1))


def hello(rng: random.Random, kind: SocketType) -> bytes:
    """That of a peer of this type; another one now and then."""
    keeps = kind is SocketType.SUB and rng.random() < 0.5
    extra = {"begin": rng.choice(("old", "new", "middle"))} if keeps else {}
    said = encode(make_hello(kind if rng.random() < 0.95 else rng.choice(TYPES_ON_WIRE), extra=extra))
    if rng.random() < 0.9:
        return said
    body = rewritten(rng, json.loads(said[HEADER_SIZE + 1 :]))
    return control(rng, kind, bytes([Control.HELLO]) + body)


def control(rng: random.Random, kind: SocketType, data: bytes) -> bytes:
    """A control frame."""
    return Raw(data, _CONTROL, number(rng, 8), socket_type=int(kind)).encode()


def any_control(rng: random.Random, kind: SocketType) -> bytes:
    """Credits, orders of subscriptions, steps of an upgrade, words that make no sense here."""
    said = rng.choice(list(Control)) if rng.random() < 0.9 else rng.randrange(256)
    first = bytes([said])
    if said == Control.UPGRADE and rng.random() < 0.7:
        step = rng.choice(("offer", "accept", "ready", "decline", "later"))
        return encode_step(kind, step, {"name": "transfer-" + "0" * 32, "token": "00" * 16})
    if said == Control.CREDIT and rng.random() < 0.8:
        return control(rng, kind, CREDIT.pack(said, number(rng, 64)))
    if said in (Control.POSITION, Control.SKIPPED, Control.WITHHELD) and rng.random() < 0.9:
        return control(rng, kind, first + struct.pack("<QQ", number(rng, 64), number(rng, 64)) + name(rng))
    if said == Control.OFFLINE and rng.random() < 0.9:
        return control(rng, kind, first + number(rng, 64).to_bytes(8, "little"))
    if said in (Control.SUBSCRIBE, Control.UNSUBSCRIBE, Control.SUBSCRIBED):
        return control(rng, kind, first + number(rng, 32).to_bytes(4, "little") + name(rng))
    return control(rng, kind, first + rng.choice((b"", b"\0", name(rng), payload(rng))))


def tensor_header(rng: random.Random) -> tuple[int, bytes]:
    """(flags, meta) of a tensor: as it should be, or with other numbers."""
    dial = rng.randrange(5)
    if dial == 0:
        return TENSOR, META
    if dial == 1:
        return TENSOR | EXTENDED, EXTENDED_META
    if dial == 2:
        return TENSOR, struct.pack("<II4qB7x", number(rng, 32), rng.randrange(6), *rng.choice(_SHAPES), 1)
    if dial == 3:
        return TENSOR | EXTENDED, struct.pack("<I", number(rng, 32)) + rng.randbytes(60)
    size = rng.choice((16, 24, 60, 4096))
    fixed = struct.pack(
        "<IBBHII", size, rng.randrange(4), rng.randrange(3), 0, number(rng, 32), number(rng, 32)
    )
    return TENSOR | EXTENDED, (fixed + rng.randbytes(size))[:size]


def frame(rng: random.Random, kind: SocketType, data: bytes | None = None) -> bytes:
    """A frame with data. Its lengths are right, mostly."""
    flags, meta, topic = rng.choice((0, 0, MORE)) | rng.choice((0, 0, CRC)), b"", b""
    if rng.random() < 0.2:
        more, meta = tensor_header(rng)
        flags |= more
    if rng.random() < 0.2:
        flags, topic = flags | TOPIC, name(rng)[:200]
    if rng.random() < 0.05:
        flags = rng.randrange(256)
    made = Raw(
        payload(rng) if data is None else data, flags, number(rng, 64), meta, topic, socket_type=int(kind)
    )
    dial = rng.random()
    if dial < 0.04:
        made.length = number(rng, 64)
    elif dial < 0.06:
        made.topic_length = number(rng, 32)
    elif dial < 0.08:
        made.checksum = number(rng, 32)
    elif dial < 0.10:
        made.socket_type = rng.randrange(256)
    elif dial < 0.14:
        made.socket_type |= REFERENCE_BIT
        made.data = REFERENCE.pack(number(rng, 32), rng.randrange(3), number(rng, 64), number(rng, 64))
    return made.encode()


def message(rng: random.Random, kind: SocketType, *parts: bytes) -> bytes:
    """One message of these parts, as good as can be."""
    made = [
        Raw(part, 0 if at == len(parts) - 1 else MORE, rng.getrandbits(16), socket_type=int(kind)).encode()
        for at, part in enumerate(parts)
    ]
    return b"".join(made)


def talk(rng: random.Random, kind: SocketType) -> list[bytes]:
    """What a peer of this type says to any socket."""
    words = [hello(rng, kind)]
    for _ in range(rng.randrange(1, 12)):
        words.append(any_control(rng, kind) if rng.random() < 0.3 else frame(rng, kind))
    return words
