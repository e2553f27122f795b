"""The handshake's state machine: whole, byte by byte, with trailing data, and with garbage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, MAX_DATA, MAX_TOPIC, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.hello import Agreement, encode, frame
from transfer.transports.handshake.identity import make_hello

TOKEN = b"a token that is known to both"


class Pipe:
    """What one side sent and the other did not read yet; reads as a socket does."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def peek(self, most: int) -> bytes:
        return bytes(self.data[:most])

    def read(self, most: int) -> bytes:
        data = self.peek(most)
        del self.data[:most]
        return data


def step(side: Handshake, incoming: Pipe, outgoing: Pipe, most: int) -> bool:
    """One move of one side, with at most so many bytes; True if it did something."""
    if side.output:
        outgoing.data += side.output[:most]
        del side.output[:most]
        return True
    if side.outcome is not None or not incoming.data:
        return False
    if side.peeking:
        return side.look(incoming.peek(HEADER_SIZE))
    side.feed(incoming.read(min(most, side.wants)))
    return True


def run(one: Handshake, other: Handshake, most: int = 1 << 20) -> tuple[Pipe, Pipe]:
    to_other, to_one = Pipe(), Pipe()
    one.begin()
    other.begin()
    while step(one, to_one, to_other, most) | step(other, to_other, to_one, most):
        pass
    return to_other, to_one


def sides(**accepting) -> tuple[Handshake, Handshake]:
    tokens = accepting.pop("tokens", ())
    hello = make_hello(**{"socket_type": SocketType.PULL, **accepting})
    return (
        Handshake(make_hello(SocketType.PUSH), connecting=True),
        Handshake(hello, connecting=False, tokens=tokens),
    )


@pytest.mark.parametrize("most", [1, 2, 7, 33, 34, 35, 1 << 20])
def test_agreement_however_the_bytes_come(most):
    one, other = sides()
    run(one, other, most)
    assert isinstance(one.outcome, Agreement) and isinstance(other.outcome, Agreement)
    assert one.outcome.remote == other.local
    assert other.outcome.remote == one.local


@given(st.binary(min_size=1, max_size=100))
def test_what_follows_the_hello_is_left_alone(trailing):
    one, other = sides()
    one.begin()
    to_other, to_one = Pipe(bytes(one.output) + trailing), Pipe()
    one.output.clear()
    while step(other, to_other, to_one, 1 << 20):
        pass
    assert isinstance(other.outcome, Agreement)
    assert to_other.data == trailing
    to_one.data += trailing
    while step(one, to_one, to_other, 1 << 20):
        pass
    assert isinstance(one.outcome, Agreement)
    assert to_one.data == trailing


@pytest.mark.parametrize(("accepting", "reason"), [({"socket_type": SocketType.SUB}, "socket_type"),
                                                   ({"tokens": (TOKEN,)}, "token")])  # fmt: skip
def test_a_refusal_reaches_the_other_side(accepting, reason):
    one, other = sides(**accepting)
    to_other, to_one = run(one, other)
    for side in (one, other):
        assert isinstance(side.outcome, HandshakeError)
        assert side.outcome.reason == reason
    assert not to_other.data and not to_one.data
    assert TOKEN.decode() not in str(one.outcome)


def test_a_mirror_is_seen():
    side = Handshake(make_hello(SocketType.PAIR), connecting=True)
    side.begin()
    echo = Pipe(bytes(side.output))
    side.output.clear()
    while step(side, echo, Pipe(), 1 << 20):
        pass
    assert side.outcome.reason == "self_connect"


# --- plain version-1 peers ----------------------------------------------------------------------


def header(kind=SocketType.PUSH, flags=0, topic=0, length=5, magic=MAGIC, version=1) -> bytes:
    return HEADER.pack(magic, version, kind, flags, 9, topic, length, 0)


@pytest.mark.parametrize("flags", [0, Flag.TENSOR, Flag.TOPIC, Flag.ACK, Flag.TENSOR | Flag.TOPIC | Flag.ACK])
def test_a_plain_peer_is_served_and_nothing_is_read(flags):
    side = Handshake(make_hello(SocketType.PULL), connecting=False)
    data = header(flags=flags)
    for length in range(HEADER_SIZE):
        assert not side.look(data[:length])
        assert side.outcome is None
    assert side.look(data)
    assert isinstance(side.outcome, Agreement) and side.outcome.plain
    assert side.outcome.remote.socket_type is SocketType.PUSH
    assert not side.output


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(magic=1), "magic"),
        (header(version=2), "version"),
        (header(kind=9), "socket_type"),
        (header(kind=SocketType.SUB), "socket_type"),
        (header(flags=Flag.MORE), "flags"),
        (header(flags=Flag.CRC), "flags"),
        (header(flags=Flag.LZ4 | Flag.EXTENDED), "flags"),
        (header(length=MAX_DATA + 1), "length"),
        (header(length=1 << 63), "length"),
        (header(topic=MAX_TOPIC + 1), "length"),
        (b"GET / HTTP/1.1\r\n\r\n", "magic"),
        (b"\x16\x03\x01", "magic"),
        (b"\xff" * 10, "magic"),
    ],
)
def test_what_is_no_plain_peer(data, reason):
    side = Handshake(make_hello(SocketType.PULL), connecting=False)
    assert side.look(data)
    assert isinstance(side.outcome, HandshakeError) and side.outcome.reason == reason
    assert not side.output, "who speaks something else is told nothing"


def test_with_a_token_a_plain_peer_is_refused():
    side = Handshake(make_hello(SocketType.PULL), connecting=False, tokens=(TOKEN,))
    assert side.look(header())
    assert side.outcome.reason == "token"


def test_the_owners_limit_holds_for_a_plain_peer():
    side = Handshake(make_hello(SocketType.PULL, max_message=1000), connecting=False)
    assert side.look(header(length=1001))
    assert side.outcome.reason == "length"


# --- what must not get through ------------------------------------------------------------------

GOOD = encode(make_hello(SocketType.PULL))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(kind=SocketType.PULL), "no_hello"),
        (header(flags=Flag.CONTROL | Flag.MORE), "flags"),
        (header(flags=Flag.CONTROL, topic=1), "flags"),
        (HEADER.pack(MAGIC, 1, 5, Flag.CONTROL, 0, 0, 1, 0), "length"),
        (HEADER.pack(MAGIC, 1, 5, Flag.CONTROL, 0, 0, 1 << 20, 0), "length"),
        (HEADER.pack(MAGIC, 1, 5, Flag.CONTROL, 0, 0, 1 << 63, 0), "length"),
        (HEADER.pack(MAGIC, 7, 5, Flag.CONTROL, 0, 0, 9, 0), "version"),
        (frame(SocketType.PULL, b"\x01{}"), "hello"),
        (frame(SocketType.PULL, b"\x05" + struct.pack("<Q", 1)), "hello"),
        (frame(SocketType.PUB, GOOD[HEADER_SIZE:]), "hello"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_bad_answers(data, reason):
    side = Handshake(make_hello(SocketType.PUSH), connecting=True)
    pipe = Pipe(data)
    while step(side, pipe, Pipe(), 1 << 20):
        pass
    assert isinstance(side.outcome, HandshakeError)
    assert side.outcome.reason == reason


def drive(side: Handshake, data: bytes, most: int) -> None:
    pipe, sent = Pipe(data), Pipe()
    while step(side, pipe, sent, most):
        assert side.wants <= 16 * 1024 + 1, "a peer decides how much is read, but not how much at most"


@given(st.binary(max_size=300), st.booleans(), st.integers(1, 50))
def test_fuzz(data, connecting, most):
    side = Handshake(make_hello(SocketType.PULL), connecting=connecting)
    drive(side, data, most)
    assert side.outcome is None or isinstance(side.outcome, HandshakeError)


@given(
    st.sampled_from([GOOD, encode(make_hello(SocketType.PUSH)), header() + b"12345"]),
    st.integers(0, 1000),
    st.integers(1, 255),
    st.booleans(),
    st.integers(1, 100),
)
def test_fuzz_of_one_byte(data, position, change, connecting, most):
    damaged = bytearray(data)
    damaged[position % len(data)] ^= change
    side = Handshake(make_hello(SocketType.PULL), connecting=connecting)
    drive(side, bytes(damaged), most)
    assert side.outcome is None or isinstance(side.outcome, (HandshakeError, Agreement))


def test_the_drivers_own_reasons():
    one, _ = sides()
    one.begin()
    one.fail("timeout", "too late", hint="wait longer")
    assert one.outcome.reason == "timeout" and not one.output and not one.wants


GREETING = bytes.fromhex("ff00000000000000017f")


@pytest.mark.parametrize("connecting", [True, False])
@pytest.mark.parametrize("most", [1, 5, 10])
@pytest.mark.parametrize(
    ("begin", "who"),
    [
        (GREETING, "ZeroMQ"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", "TLS"),
        (b"\x15\x03\x01\x00\x02\x02\x0a", "TLS"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"HTTP/1.1 400", "HTTP"),
        (b"SSH-2.0-x", "SSH"),
        (b"-ERR unknown command", "Redis"),
    ],
)
def test_another_protocol_is_named_by_its_first_bytes(connecting, most, begin, who):
    """They send less than a header of ours, and wait for an answer of their kind."""
    side = sides()[0 if connecting else 1]
    side.begin()
    assert side.connecting is connecting
    side.output.clear()
    if side.peeking:
        assert side.look(begin[:most])
    else:
        side.feed(begin[:most])
    assert isinstance(side.outcome, HandshakeError) and side.outcome.reason == "magic"
    assert who in str(side.outcome) and side.outcome.hint


def test_the_beginning_of_a_hello_is_no_other_protocol():
    for count in range(1, HEADER_SIZE):
        one, other = sides()
        one.feed(encode(make_hello(SocketType.PULL))[:count])
        assert one.outcome is None
        assert not other.look(encode(make_hello(SocketType.PUSH))[:count])
