"""Dialogues about a faster transport with a bad peer, by seed: both sides come to a sound end, or an error.

    python -m tests.transports.fuzz_upgrade --dialogues 300000 --seed 1

A case is one side (accepting or connecting), how our own part behaves, and the bytes that the peer says
behind its hello: steps as they should be, changed at random, in any order, of the wrong kind, cut off,
huge. The handshake's state machine gets them whole and in pieces. See `judge`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.transports import fuzz_hello
from tests.transports.fuzz_hello import fed, little_memory
from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError, InternalError, ProtocolError
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import MAX_DEPTH, Agreement, Hello, encode, frame
from transfer.transports.handshake.upgrade import (
    MAX_STEP,
    Declined,
    Made,
    Upgrade,
    encode as encode_step,
    number_of,
    text_of,
)

#: one case in so many has its memory measured, since that makes it slow
MEASURED = 100
#: how our own part behaves; "require": as "strict", under the policy that allows no other transport
PARTS = ("strict", "require", "declines", "fails", "echoes", "none", "large")
ROLES = ("accepting", "connecting")
WANTED = "rdma"

_OURS = Hello(
    SocketType.PULL, nonce="a1" * 16, host_id="box", offer=Offer((WANTED, "tcp"), WANTED, "auto", "here")
)
_PEERS = Hello(SocketType.PUSH, nonce="b2" * 16, host_id="box", offer=Offer((WANTED, "tcp")))
HELLO = encode(_PEERS)
GOOD = {"name": "door", "token": "00ff" * 8, "number": 7}


class Part(Upgrade):
    """One side's part that takes one thing and has to give it back, or away, once."""

    def __init__(self, kind: str, connecting: bool) -> None:
        self.kind = kind
        self.connecting = connecting
        self.taken = self.given_back = self.given_away = 0
        self.steps: list[str] = []

    def offer(self) -> dict[str, Any]:
        self.taken += 1
        self.steps.append("offer")
        return {"name": "x" * (MAX_STEP + 1)} if self.kind == "large" else dict(GOOD)

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        self.taken += 1
        self.steps.append("accept")
        self._read(offer)
        return {"name": "x" * (MAX_STEP + 1)} if self.kind == "large" else dict(GOOD)

    def finish(self, answer: dict[str, Any]) -> None:
        self.steps.append("finish")
        self._read(answer)

    def _read(self, said: dict[str, Any]) -> None:
        if self.kind == "declines":
            raise Declined("memlock", "too little memory may be locked", hint="ulimit -l")
        if self.kind == "fails":
            raise InternalError("the device\nfailed")
        if self.kind == "echoes":
            raise ProtocolError("upgrade", f"no sense: {said}")
        understood(said)

    def made(self, fd: int, channel: Any = None) -> Made:
        self.given_away += 1
        return Made(fd, carrier="made")

    def close(self) -> None:
        self.given_back += 1


def understood(said: dict[str, Any]) -> None:
    """As real transports read what a peer says. Raises ProtocolError."""
    text_of(said, "name", 100)
    number_of(said, "number", 1 << 24)
    try:
        bytes.fromhex(text_of(said, "token"))
    except ValueError as error:
        raise ProtocolError("upgrade", "the token is not hexadecimal") from error


# --- what the peer says -----------------------------------------------------------------------


def step(name: str, content: dict[str, Any]) -> bytes:
    return encode_step(SocketType.PUSH, name, content)


def _said(rng: random.Random, name: str) -> bytes:
    """The body of one step, good or with other values."""
    content: dict[str, Any] = {"step": name}
    if name in ("offer", "accept"):
        content |= GOOD
    elif name == "decline":
        content |= {"reason": rng.choice(("memlock", "x" * 64, "a\nb", "")), "message": "no"}
    body = json.dumps(content).encode()
    return fuzz_hello._rewritten(rng, body) if rng.random() < 0.3 else body


def _one(rng: random.Random, name: str) -> bytes:
    """One step as a frame, damaged at times; or something else where it should be."""
    way = rng.random()
    if way < 0.03:
        return fuzz_hello._plain(rng, SocketType.PUSH)
    if way < 0.05:
        return HELLO
    if way < 0.06:
        return frame(SocketType.PUSH, bytes([Control.UPGRADE]) + _huge(rng))
    kind = Control.UPGRADE if way < 0.95 else rng.randrange(256)
    data = frame(SocketType.PUSH, bytes([kind]) + _said(rng, name))
    if way < 0.80:
        return data
    if way < 0.85:
        return fuzz_hello._other_header(rng, data)
    return fuzz_hello._damaged(rng, data)


def _huge(rng: random.Random) -> bytes:
    """As much as one step may hold, and a little more."""
    size = rng.choice((MAX_STEP, MAX_STEP, MAX_STEP + 1, 4 * MAX_STEP))
    way = rng.randrange(4)
    if way == 0:
        piece = rng.choice(fuzz_hello._DENSE).encode()
        many = b",".join([piece] * ((size - 30) // (len(piece) + 1)))
        return b'{"step":"offer","a":[' + many + b"]}"
    if way == 1:
        return b"[" * size
    if way == 2:
        return b'{"step":"' + b"x" * (size - 11) + b'"}'
    return b'{"step":"decline","message":"' + "\u00fc".encode() * ((size - 31) // 2) + b'"}'


def case(seed: int) -> tuple[str, str, bytes, int]:
    """(one of ROLES, one of PARTS, what the peer says behind its hello, in pieces of how many bytes)."""
    rng = random.Random(seed)
    role = rng.choice(ROLES)
    part = rng.choice(("strict", "strict", "strict", *PARTS))
    names = ["accept"] if role == "accepting" else ["offer", "ready"]
    way = rng.random()
    if way < 0.2:
        names = [
            rng.choice(("offer", "accept", "ready", "decline", "later")) for _ in range(rng.randrange(5))
        ]
    elif way < 0.3:
        names[rng.randrange(len(names))] = "decline"
    elif way < 0.4:
        rng.shuffle(names)
        names *= 2
    data = b"".join(_one(rng, name) for name in names)
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data) + 1)]
    if rng.random() < 0.2:
        data += rng.choice((rng.randbytes(rng.randrange(1, 100)), data, HELLO))
    return role, part, data, rng.choice((1, 7, 33, 34, 35, 100, 4096))


# --- what becomes of it -----------------------------------------------------------------------


def _frames(data: bytes) -> list[tuple[str, dict[str, Any]] | str]:
    """The steps in `data`, read simply; "bad" where there is none, and "cut" at the end of the bytes."""
    found: list[tuple[str, dict[str, Any]] | str] = []
    while True:
        if len(data) < HEADER_SIZE:
            return [*found, "cut"]
        magic, version, _, flags, _, topic, length, _ = HEADER.unpack_from(data)
        if (magic, version, flags, topic) != (
            MAGIC,
            VERSION,
            Flag.CONTROL,
            0,
        ) or not 1 < length <= MAX_STEP + 1:
            return [*found, "bad"]
        body, data = data[HEADER_SIZE : HEADER_SIZE + length], data[HEADER_SIZE + length :]
        if len(body) < length:
            return [*found, "cut"]
        try:
            content = json.loads(body[1:].decode()) if body[0] == Control.UPGRADE else None
            name = content.pop("step")
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return [*found, "bad"]
        if not isinstance(content, dict) or not isinstance(name, str) or _is_deep(content):
            return [*found, "bad"]
        found.append((name, content))


def _is_deep(value: Any, levels: int = MAX_DEPTH) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deep(item, levels - 1) for item in inner)


def expected(role: str, part: str, data: bytes) -> str:
    """How it has to end, found by a second and simpler reading: more, upgraded, declined, policy, upgrade."""
    declined = "policy" if part == "require" else "declined"
    if part == "none" and role == "accepting":
        return declined
    if part == "large" and role == "accepting":
        return "upgrade"
    due = "accept" if role == "accepting" else "offer"
    for found in _frames(data):
        if isinstance(found, str):
            return "more" if found == "cut" else "upgrade"
        name, content = found
        if name == "decline":
            return declined
        if name != due:
            return "upgrade"
        if due == "ready":
            return "upgraded"
        if part in ("declines", "fails", "echoes", "none"):
            return declined
        try:
            understood(content)
        except ProtocolError:
            return declined
        if due == "accept":
            return "upgraded"
        if part == "large":
            return "upgrade"
        due = "ready"
    return "more"


def _side(role: str, part: str) -> tuple[Handshake, list[Part]]:
    parts: list[Part] = []

    def factory(agreement: Agreement, connecting: bool) -> Upgrade:
        assert agreement.choice.transport == WANTED
        if part == "none":
            raise Declined("unavailable", "there is no such device")
        parts.append(Part(part, connecting))
        return parts[-1]

    local = _OURS
    if part == "require":
        local = replace(local, offer=replace(local.offer, policy="require"))
    return Handshake(local, connecting=role == "connecting", upgrades=factory), parts


def ending(role: str, part: str, data: bytes, piece: int) -> str:
    """How the handshake ended, in a word and with the bytes left alone. Checks what always holds."""
    side, parts = _side(role, part)
    with little_memory():
        side.begin()
        taken = fed(side, HELLO + data, piece, MAX_STEP + 1)
    outcome, said = side.outcome, bytes(side.output)
    assert len(said) <= 3 * (HEADER_SIZE + MAX_STEP + 1)
    assert len(parts) <= 1
    if isinstance(outcome, HandshakeError):
        assert outcome.reason in ("upgrade", "policy"), outcome.reason
        assert str(outcome).replace("\n", "").isprintable() or part == "echoes", "errors are shown to people"
        word = outcome.reason
    elif outcome is None:
        assert taken == len(HELLO) + len(data), "it waits although there is more"
        word = "more"
        side.fail("timeout", "the driver's")
    elif outcome.choice.transport == WANTED:
        made = side.made(5)
        assert made.fd == 5 and made.carrier == "made"
        assert parts[0].steps == (["offer", "finish"] if role == "accepting" else ["accept"])
        word = "upgraded"
    else:
        choice = outcome.choice
        assert choice.transport == "tcp" and choice.fallback and choice.wanted == WANTED
        assert 0 < len(choice.word) < 64 and choice.word.isprintable(), "a constant word for counters"
        assert len(choice.reason) < 2000
        assert side.made(5) == Made(5), "the connection goes on as it is"
        word = "declined"
    side.abandon()
    for one in parts:
        assert one.given_back + one.given_away == 1, "what was taken is given back, or away, once"
        assert one.given_away == (word == "upgraded")
    if word in ("declined", "policy") and said:
        last = [found for found in _frames(said[len(encode(side.local)) :]) if not isinstance(found, str)]
        assert not last or last[-1][0] in ("decline", "offer", "accept")
    return f"{word}, {len(HELLO) + len(data) - taken} left"


def judge(role: str, part: str, data: bytes, piece: int) -> str:
    """What becomes of this dialogue. Raises for everything that must not happen:

    another error than HandshakeError, a reason that is not documented, an upgrade that the peer did
    not agree to, another end than a second reading finds, an end that depends on the pieces, a part
    that is not closed once, more memory than `fuzz_hello.MOST_MEMORY`.
    """
    found = ending(role, part, data, len(HELLO) + len(data))
    piece = max(piece, (len(HELLO) + len(data)) // 20)
    assert ending(role, part, data, piece) == found, f"other in pieces of {piece}"
    word = found.split(",")[0]
    assert word == expected(role, part, data), f"{word} where {expected(role, part, data)} was due"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dialogues", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.dialogues):
        role, part, data, piece = case(seed)
        if seed % MEASURED == 0:
            tracemalloc.start()
        try:
            found = judge(role, part, data, piece)
        except BaseException:
            print(f"seed {seed}, {role}, {part}, pieces of {piece}: {data[:2000]!r}")
            raise
        finally:
            tracemalloc.stop()
        seen[f"{role}: {found.split(',')[0]}"] += 1
    print(f"{options.dialogues} dialogues from seed {options.seed}")
    for word, count in sorted(seen.items()):
        print(f"  {word}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
