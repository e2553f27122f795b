"""Damaged hellos, by seed: they are understood, or refused with a reason, and nothing else happens.

    python -m tests.transports.fuzz_hello --hellos 1000000
    python -m tests.transports.fuzz_hello --hellos 20000 --save FILE   # keeps one input for each outcome

A case is what a connection may begin with: a hello, a refusal, the first message of a peer without
hello, each as it should be or changed at random, or JSON that never was a hello; then perhaps more
bytes. The parser gets it, and the state machine on both sides, whole and in pieces. See `judge`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer.transports.address import POLICIES
from transfer.transports.core.wire import (
    HEADER,
    HEADER_SIZE,
    LAST_TYPE,
    MAGIC,
    MAX_DATA,
    MAX_TOPIC,
    TYPES_ON_WIRE,
    VERSION,
    Control,
    SocketType,
)
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import (
    MAX_HELLO,
    MAX_LIST,
    MAX_ROUTING_ID,
    MAX_TEXT,
    PROVES_FIRST,
    REASONS,
    Agreement,
    Hello,
    decode_body,
    encode,
    encode_refusal,
    frame,
    negotiate,
)
from transfer.transports.security.proof import ACCEPTING, CONNECTING, prove, transcript

#: bytes that one hello, which has at most 16 KiB, may make us allocate at any moment
MOST_MEMORY = 1 << 20
#: one case in so many has its memory measured, since that makes it slow
MEASURED = 100
#: all that a handshake may end with, but for what its driver finds (timeout, closed, ...)
ALLOWED = REASONS | {"refused", "no_hello"}

#: what the one who proves knows
TOKENS = (b"the token of a fuzz, and long", b"an older one that is still taken")
#: whom the bytes reach
LOCALS = {
    "pull": Hello(SocketType.PULL, features=frozenset({"crc32", "lz4", "credit"}), nonce="a1" * 16),
    "small": Hello(SocketType.PULL, nonce="a2" * 16, limits={"max_message": 1000}),
    "secret": Hello(SocketType.PULL, features=frozenset({PROVES_FIRST}), nonce="a3" * 16, proves=True),
    "newer": Hello(SocketType.PULL, versions=(2, 3), nonce="a4" * 16),
    "pair": Hello(SocketType.PAIR, nonce="a5" * 16, offer=Offer(("tcp",), "tcp", "require", "here")),
    "router": Hello(SocketType.ROUTER, routing_id=b"router", nonce="a6" * 16),
}
_PEERS = {
    "pull": SocketType.PUSH, "small": SocketType.PUSH, "secret": SocketType.PUSH, "newer": SocketType.PUSH,
    "pair": SocketType.PAIR, "router": SocketType.DEALER,
}  # fmt: skip

# --- what arrives -----------------------------------------------------------------------------

_WORDS = ("tcp", "ucx", "rdma", "crc32", "lz4", "credit", "auto", "later", "a", "x" * 64)
_TEXTS = ("", "box", "Grüße", "\U0001f600" * 3, "x" * 900, "secret", "the endpoint tcp://*:1")
#: what stands in JSON where something else should
_VALUES = (
    "null", "true", "false", "0", "-0", "-1", "1", "1.0", "1e0", "1e9", "1e999", "-1e999", "255", "256",
    "0.1e-400", "65536", "65537", "9007199254740992", "9007199254740993", "18446744073709551616", "9" * 400,
    "9" * 4301, "NaN", "Infinity", '""', '"tcp"', '"T"', '"00"', '"0"', '"00 11"', '"zz"', '"\\u0000"',
    '"\\ud800"', '"\\ud83d\\ude00"', '"\\n"', '"\\u202e"', '"\\u0661\\u0662"', '"' + "0" * 512 + '"',
    '"' + "x" * 1025 + '"', "[]", "[1,1]", "[1,2]", "[2,1]", "[0,1]", "[1]", "[true,1]", "[1,1e999]",
    '["tcp"]', '["tcp","rdma"]', '["Tcp"]', '["\\ud800"]', "[[]]", "[" + "1," * 64 + "1]",
    "{}", '{"max_message":0}', '{"max_message":-1}', '{"":1}', '{"a b":1}', '{"heartbeat_ms":1e999}',
    '{"heartbeat_ms":5000}', '{"a":[1e999]}', '{"\\ud800":"\\udfff"}', '{"a":' + "[" * 31 + "]" * 31 + "}",
    '{"a":' + "[" * 32 + "]" * 32 + "}", "[" * 5000, "01", "+1", ".5", "1.", "'a'", "",
)  # fmt: skip
_KEYS = (
    "versions", "type", "features", "id", "host", "epoch", "nonce", "limits", "transports", "protocol",
    "policy", "source", "lazy", "extra", "proves", "instance", "reason", "message", "later", "",
)  # fmt: skip
#: what may appear in the middle of one
_PIECES = (b'"', b"\\u", b"[", b"{", b"\xff", b"1e999", b"\xed\xa0\x80", b"\xf0\x9f")
#: short pieces that become many objects
_DENSE = ("[]", "{}", '""', "0.5", "1000", '{"":[]}', '[[""]]', '"\U0001f600"', "1e9")
_LENGTHS = (0, 1, 2, 33, 34, 1000, 1001, MAX_HELLO + 1, MAX_HELLO + 2, MAX_DATA, MAX_DATA + 1, 1 << 63)


def hello(rng: random.Random, kind: SocketType, nonce: str) -> Hello:
    """A good one. `nonce` is the receiver's own, which a mirror would send."""
    oldest = rng.choice((1, 1, 1, 1, 1, 2))
    return Hello(
        kind,
        (oldest, oldest + rng.choice((0, 0, 1, 5))),
        frozenset(rng.sample(_WORDS, rng.randrange(4))),
        rng.randbytes(rng.choice((0, 0, 5, 255))),
        rng.choice(_TEXTS),
        rng.choice(_TEXTS),
        nonce if rng.random() < 0.05 else rng.randbytes(rng.choice((0, 16, 16, 64))).hex(),
        rng.random() < 0.2,
        {word: rng.choice((0, 1, 1 << 53)) for word in rng.sample(_WORDS, rng.randrange(3))},
        Offer(
            tuple(rng.sample(_WORDS, rng.randrange(3))),
            rng.choice(("auto", "auto", "auto", "tcp", "rdma", "later")),
            rng.choice(("auto", "auto", *POLICIES)),
            rng.choice(_TEXTS),
        ),
        rng.random() < 0.2,
        rng.choice(({}, {}, {"heartbeat_ms": 5000}, {"a": [None, {"b": 0.5}], "ü": 10**20})),
    )


def _rewritten(rng: random.Random, body: bytes) -> bytes:
    """The JSON with other values, keys that are gone or new, or twice there."""
    fields = [(key, json.dumps(value)) for key, value in json.loads(body).items()]
    for _ in range(rng.choice((1, 1, 2, 4))):
        way = rng.randrange(4)
        at = rng.randrange(len(fields)) if fields else 0
        if rng.random() < 0.02:
            depth = rng.choice((rng.randrange(1, 60), rng.randrange(900, 1100)))
            fields.append((rng.choice(("extra", "later")), '{"a":' * depth + "1" + "}" * depth))
        if way < 2 and fields:
            fields[at] = (fields[at][0], rng.choice(_VALUES))
        elif way == 2 and fields:
            del fields[at]
        else:
            fields.insert(at, (rng.choice(_KEYS), rng.choice(_VALUES)))
    return ("{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in fields) + "}").encode()


def _dense(rng: random.Random) -> bytes:
    """A hello that has as many objects in it as its length allows."""
    piece = rng.choice(_DENSE)
    room = rng.choice((2000, MAX_HELLO - 60, MAX_HELLO - 60))
    many = ",".join([piece] * (room // (len(piece.encode()) + 1)))
    key = rng.choice(("extra", "extra", "later", "features"))
    value = '{"a":[' + many + "]}" if key == "extra" else "[" + many + "]"
    return f'{{"versions":[1,1],"type":4,"{key}":{value}}}'.encode()


def _refusal(rng: random.Random, kind: SocketType) -> bytes:
    reason = rng.choice((*sorted(REASONS), "later", "x y", ""))
    return encode_refusal(kind, HandshakeError(reason, rng.choice(_TEXTS)))


def _control(rng: random.Random, kind: SocketType, nonce: str) -> bytes:
    """A hello or refusal as one frame, perhaps with other JSON."""
    if rng.random() < 0.1:
        return _refusal(rng, kind)
    if rng.random() < 0.005:
        return frame(kind, bytes([Control.HELLO]) + _dense(rng))
    good = encode(hello(rng, kind, nonce))
    if rng.random() < 0.5:
        return good
    body = _rewritten(rng, good[HEADER_SIZE + 1 :])
    first = rng.choice((Control.HELLO,) * 8 + (Control.REFUSED, Control.REFUSED, 0, 2, 9, 255))
    return frame(kind, bytes([first]) + body)


def _plain(rng: random.Random, kind: SocketType) -> bytes:
    """The first message of a peer that says no hello, or what looks like one."""
    flags = rng.choice((0, 1, 2, 3, 4, 7, rng.randrange(256)))
    length = rng.choice((*_LENGTHS[:6], 5, 5, 5, rng.choice(_LENGTHS)))
    topic = rng.choice((0, 0, 3, MAX_TOPIC, MAX_TOPIC + 1, (1 << 32) - 1))
    head = HEADER.pack(MAGIC, VERSION, kind, flags, rng.getrandbits(64), topic, length, rng.getrandbits(32))
    return head + rng.randbytes(rng.choice((0, 5, min(length, 100))))


def _proofs(rng: random.Random, kind: SocketType, heard: bytes, local: Hello) -> bytes:
    """What one who knows the token says behind his hello, to either side; or one who does not."""
    said = encode(local)
    who, both = rng.choice(((CONNECTING, (heard, said)), (ACCEPTING, (said, heard))))
    if rng.random() < 0.2:
        who = rng.choice((CONNECTING, ACCEPTING))  # the other side's, thrown back
    name = rng.choice((b"", b"", b"", b"one"))
    proof = bytes([len(name)]) + name
    proof += prove(rng.choice((*TOKENS, b"another one")), who, transcript(*both, b""), name)
    if rng.random() < 0.2:
        proof = rng.choice((b"", proof[:-1], proof + b"\0", rng.randbytes(32), bytes(5000)))
    frames = [bytes([Control.PROOF]) + proof, bytes([Control.PROOF, 0])]
    if rng.random() < 0.2:
        frames.insert(
            rng.randrange(2), rng.choice((b"", b"\0", frames[0], _refusal(rng, kind)[HEADER_SIZE:]))
        )
    data = b"".join(frame(kind, each) for each in frames)
    return _damaged(rng, data) if rng.random() < 0.2 else data


def _other_header(rng: random.Random, data: bytes) -> bytes:
    """One field of the header is another; the rest stays."""
    fields = list(HEADER.unpack_from(data))
    at = rng.randrange(len(fields))
    fields[at] = rng.choice(_LENGTHS) if at == 6 else rng.getrandbits((32, 32, 8, 8, 64, 32, 64, 32)[at])
    if at in (1, 2, 3) and rng.random() < 0.7:
        fields[at] = rng.choice((0, 1, 2, 8, 9, 24))
    return HEADER.pack(*fields) + data[HEADER_SIZE:]


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut off, left out, doubled or new."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        at = rng.choice((at, at, at % HEADER_SIZE))
        way = rng.randrange(6)
        if way == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            changed[at] = rng.choice(b'\0\1\x7f\x80\xff"\\{}[]:,0-e')
        elif way == 2:
            changed[at:at] = rng.choice(_PIECES)
        elif way == 3:
            del changed[at : at + rng.randrange(1, 50)]
        elif way == 4:
            changed[at:at] = changed[at : at + rng.randrange(1, 50)]
        else:
            del changed[at:]
    if len(changed) >= HEADER_SIZE and rng.random() < 0.6:  # else most end at their length
        changed[22:30] = (len(changed) - HEADER_SIZE).to_bytes(8, "little")
    return bytes(changed)


def case(seed: int) -> tuple[str, bytes, int]:
    """(a name of LOCALS, what arrives, in pieces of how many bytes)."""
    rng = random.Random(seed)
    name = rng.choice(("pull", "pull", "pull", *LOCALS))
    kind = _PEERS[name] if rng.random() < 0.8 else rng.choice(TYPES_ON_WIRE)
    data = _plain(rng, kind) if rng.random() < 0.2 else _control(rng, kind, LOCALS[name].nonce)
    way = rng.random()
    if way < 0.15:
        data = _other_header(rng, data)
    elif way < 0.5:
        data = _damaged(rng, data)
    elif way < 0.53:
        data = rng.randbytes(rng.randrange(100))
    if name == "secret" and rng.random() < 0.8:
        data += _proofs(rng, kind, data, LOCALS[name])
    if rng.random() < 0.3:
        data += rng.choice((rng.randbytes(rng.randrange(1, 100)), data, _plain(rng, kind)))
    return name, data, rng.choice((1, 7, 33, 34, 35, 100, 4096))


# --- what becomes of it -----------------------------------------------------------------------


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """What happens inside may not allocate more than MOST_MEMORY at any moment (while tracemalloc runs)."""
    if not tracemalloc.is_tracing():
        yield
        return
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    yield
    used = tracemalloc.get_traced_memory()[1] - before
    assert used <= MOST_MEMORY, f"{used} bytes for one hello"


def well_formed(found: Hello) -> None:
    """Every field is what `docs/wire.md` says, and it survives its own bytes."""
    assert 1 <= found.versions[0] <= found.versions[1] <= 1 << 16
    assert len(found.routing_id) <= MAX_ROUTING_ID and len(found.nonce) <= 128
    texts = (found.host_id, found.epoch, found.offer.source)
    assert all(len(text) <= MAX_TEXT and text.isprintable() for text in texts)
    assert found.offer.policy in POLICIES and type(found.lazy) is bool
    assert max(len(found.features), len(found.offer.transports), len(found.limits)) <= MAX_LIST
    words = (*found.features, *found.offer.transports, *found.limits, found.offer.protocol)
    assert all(word.isascii() and len(word) <= 64 for word in words)
    assert all(type(number) is int and 0 <= number <= 1 << 53 for number in found.limits.values())
    assert repr(found), "peers() and errors show it"


def parsed(data: bytes, kind: SocketType) -> Hello | HandshakeError:
    """What the parser makes of a body. Raises whatever else it should not."""
    with little_memory():
        try:
            found = decode_body(data, kind)
        except HandshakeError as error:
            return error
    well_formed(found)
    try:
        again = encode(found)
    except HandshakeError:  # the same text is longer in ASCII, a number without its exponent
        assert len(data) > MAX_HELLO // 8
        return found
    assert decode_body(again[HEADER_SIZE:], kind) == found, "another one after encode and decode"
    return found


def shaken(local: Hello, data: bytes, connecting: bool, piece: int) -> tuple[Handshake, int, bytes]:
    """(the state machine at its end, bytes that it took, what it said), as bytes arrive in pieces."""
    side = Handshake(local, connecting=connecting, tokens=TOKENS if local.proves else ())
    side.begin()
    side.output.clear()
    taken = fed(side, data, piece, MAX_HELLO + 1)
    return side, taken, bytes(side.output)


def fed(side: Handshake, data: bytes, piece: int, limit: int) -> int:
    """The bytes arrive in pieces; how many were taken. No step may ask for more than `limit`."""
    taken = arrived = 0
    while side.outcome is None and arrived < len(data):
        arrived = min(len(data), arrived + piece)
        while side.outcome is None and taken < arrived:
            if side.peeking:
                if not side.look(data[taken : min(arrived, taken + HEADER_SIZE)]):
                    break
            else:
                assert 0 < side.wants <= limit, "a peer decides how much is read, within a limit"
                step = min(side.wants, arrived - taken)
                side.feed(data[taken : taken + step])
                taken += step
    return taken


def ending(local: Hello, data: bytes, connecting: bool, piece: int) -> str:
    """How the state machine ended, as text: outcome and bytes left alone. Checks what always holds."""
    with little_memory():
        side, taken, said = shaken(local, data, connecting, piece)
    outcome = side.outcome
    whole = HEADER_SIZE + int.from_bytes(data[22:30], "little")
    if outcome is None:
        assert taken == len(data) or (side.peeking and taken == 0 and len(data) < HEADER_SIZE)
        assert not said or (local.proves and taken >= whole), "a proof follows"
        assert connecting or said in (b"", encode(local)), "who has proved nothing is proved nothing"
        return f"more, {len(data) - taken} left"
    assert not side.wants or isinstance(outcome, Agreement)
    if isinstance(outcome, HandshakeError):
        assert outcome.reason in ALLOWED, outcome.reason
        assert str(outcome).replace("\n", "").isprintable(), "errors are shown to people"
        proving = local.proves and taken > whole
        if connecting and not data.startswith(MAGIC.to_bytes(4, "little")[: len(data)]):
            assert taken <= HEADER_SIZE and not said, "its first bytes are enough"
            return f"{outcome.reason}, the rest is left"
        assert taken in (0, HEADER_SIZE, whole) or (proving and taken in frames_of(data, 2))
        assert taken <= HEADER_SIZE + MAX_HELLO + 1 or proving
        if taken == 0 or (connecting and not proving):
            assert not said, "who is not known to understand is told nothing"
        else:
            told = parsed(said[HEADER_SIZE:], local.socket_type)
            assert isinstance(told, HandshakeError)
            assert told.reason == (outcome.reason if outcome.reason in REASONS else "refused")
        return f"{outcome.reason}, {len(data) - taken} left"
    if outcome.plain:
        assert not connecting and not taken and not said and not outcome.features
        return f"plain {outcome.remote.socket_type.name}, {len(data)} left"
    if local.proves:
        assert taken == frames_of(data, 2)[-1] and outcome.authenticated
        assert said.startswith(b"" if connecting else encode(local))
        outcome = replace(outcome, authenticated=False)
    else:
        assert taken == whole, "what follows the hello belongs to somebody else"
        assert said == (b"" if connecting else encode(local))
    found = parsed(data[HEADER_SIZE:whole], outcome.remote.socket_type)
    assert isinstance(found, Hello) and outcome == negotiate(local, found)
    assert outcome.remote == found
    return f"agreed {outcome.remote.socket_type.name}, {len(data) - taken} left"


def frames_of(data: bytes, count: int) -> list[int]:
    """Where the headers and the bodies of so many frames end."""
    ends = [0]
    for _ in range(count):
        length = int.from_bytes(data[ends[-1] + 22 : ends[-1] + 30], "little")
        ends += [ends[-1] + HEADER_SIZE, ends[-1] + HEADER_SIZE + length]
    return ends


def judge(name: str, data: bytes, piece: int) -> dict[str, str]:
    """What becomes of these bytes. Raises for everything that must not happen:

    another error than HandshakeError, a reason that is not documented, a hello that is not well
    formed or is another after its own bytes, a byte taken that does not belong to the hello, an
    outcome that depends on the pieces, more memory than MOST_MEMORY.
    """
    local = LOCALS[name]
    kind = SocketType(data[8]) if len(data) > 8 and data[8] <= LAST_TYPE else SocketType.PUSH
    found = parsed(data[HEADER_SIZE:], kind)
    result = {"parsed": "good" if isinstance(found, Hello) else found.reason}
    for role in ("accepting", "connecting"):
        connecting = role == "connecting"
        result[role] = ending(local, data, connecting, len(data) or 1)
        piece = max(piece, len(data) // 20)
        assert ending(local, data, connecting, piece) == result[role], f"other in pieces of {piece}"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hellos", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    seen: dict[str, dict[str, int]] = {"parsed": {}, "accepting": {}, "connecting": {}}
    kept: dict[str, Any] = {}
    for seed in range(options.seed, options.seed + options.hellos):
        name, data, piece = case(seed)
        if seed % MEASURED == 0:
            tracemalloc.start()
        try:
            result = judge(name, data, piece)
        except BaseException:
            print(f"seed {seed}, local {name}, pieces of {piece}: {data!r}")
            raise
        finally:
            tracemalloc.stop()
        for part, text in result.items():
            word = text.split(" ")[0].rstrip(",")
            seen[part][word] = seen[part].get(word, 0) + 1
        key = "-".join(text.split(",")[0].replace(" ", "_") for text in result.values())
        if len(data) < 600 and key not in kept:
            kept[key] = {"local": name, "bytes": [data.decode("latin-1")], **result}
            kept[key]["crc"] = zlib.crc32(data)
    if options.save:
        options.save.write_text(json.dumps(kept, indent=1))
    print(f"{options.hellos} hellos from seed {options.seed}")
    for part, words in seen.items():
        print(f"  {part}: {dict(sorted(words.items(), key=lambda item: -item[1]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
