"""What a ClientHello offers, from whole ones, parts of them, and garbage."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, strategies as st

from transfer.broker.core.refusal_reasons import WORDS, word_of
from transfer.transports.core.first_record import HEAD, LARGEST_HELLO
from transfer.transports.handshake.client_hello import ClientOffer, offered


def hello(*protocols):
    """As OpenSSL says it."""
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(came, goes, server_hostname="broker").do_handshake()
    return goes.read()


def in_records(message, sizes):
    """The same message, cut into records of these sizes."""
    found = b""
    while message:
        size = min(next(sizes), len(message))
        found += b"\x16\x03\x01" + size.to_bytes(2, "big") + message[:size]
        message = message[size:]
    return found


def made(extensions, session=b"", ciphers=b"\x13\x01"):
    """A ClientHello of our own."""
    body = b"\x03\x03" + bytes(32) + bytes([len(session)]) + session
    body += len(ciphers).to_bytes(2, "big") + ciphers + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return in_records(message, iter(lambda: 1 << 14, None))


def alpn(*names):
    listed = b"".join(bytes([len(name)]) + name for name in names)
    content = len(listed).to_bytes(2, "big") + listed
    return b"\x00\x10" + len(content).to_bytes(2, "big") + content


NAMES = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5)
WHOLE = hello("ttp/2", "http/1.1")


@pytest.mark.parametrize("protocols", [(), ("ttp/2",), ("h2", "http/1.1"), ("transfer/1", "transfer/1/PUSH")])
def test_what_openssl_says_is_understood(protocols):
    assert offered(hello(*protocols)) == ClientOffer(tuple(name.encode() for name in protocols))


@given(NAMES, st.binary(max_size=40))
def test_anything_may_stand_behind_it(names, behind):
    assert offered(made(alpn(*names)) + behind) == ClientOffer(tuple(names))


@given(st.lists(st.integers(1, 300), min_size=1))
def test_it_has_to_be_one_record(sizes):
    cut = in_records(WHOLE[5:], iter([*sizes, *[1 << 14] * 500]))
    assert offered(cut) == (offered(WHOLE) if cut == WHOLE else ClientOffer(None, True))


def test_a_part_says_how_many_bytes_are_needed():
    for size in range(len(WHOLE)):
        assert offered(WHOLE[:size]) == ClientOffer(None, wanted=9 if size < 9 else len(WHOLE))


@given(st.binary(max_size=400))
def test_garbage_is_foreign_or_unfinished(data):
    told = offered(data)
    assert told.foreign or told.protocols is None or data[:1] == b"\x16"


@given(st.integers(5, len(WHOLE) - 1), st.integers(0, 255))
def test_a_changed_byte_is_never_too_much(at, byte):
    told = offered(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    assert told.foreign or told.protocols is None or isinstance(told.protocols, tuple)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x02\x00",
        b"\x16\x03\x01\x00\x00",  # an empty record
        b"\x16\x03\x01\x40\x01" + bytes(10),  # one that is too long
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",  # no ClientHello
        b"\x16\x03\x01\x00\x04\x01\x00\xff\xff",  # a huge one
        in_records(b"\x01\x00\x00\x50" + bytes(40), iter(lambda: 1 << 14, None)) + b"\x17\x03\x03\x00\x01x",
        made(alpn(b"x") + b"\x00"),  # lengths that do not fit
        made(alpn(b"x")[:-1]),
        made(alpn()),
        made(alpn(b"")),
        made(alpn(b"x") + alpn(b"x")),
        made(alpn(*[b"x"] * 65)),
        made(bytes(4) * 65),
        made(b"", session=bytes(33)),
        made(b"", ciphers=b""),
        made(b"", ciphers=b"\x13"),
    ],
)
def test_what_is_no_client_hello_is_foreign(data):
    assert offered(data) == ClientOffer(None, True)


def padded(count):
    """A ClientHello with so many bytes of padding."""
    return made(b"\x00\x15" + count.to_bytes(2, "big") + bytes(count))


def test_the_largest_one():
    whole = padded(LARGEST_HELLO - 51)
    assert len(whole) == HEAD + LARGEST_HELLO and offered(whole) == ClientOffer(())
    assert offered(padded(LARGEST_HELLO - 50)).foreign


def test_as_many_names_and_extensions_as_are_read():
    assert offered(made(alpn(*[b"x"] * 64))) == ClientOffer((b"x",) * 64)
    assert offered(made(bytes(4) * 64)) == ClientOffer(())


def test_each_refusal_has_a_known_word():
    assert word_of("the peer's certificate is refused: certificate has expired") == "expired"
    assert word_of("something new") == "protocol"
    assert word_of("something new") in WORDS
