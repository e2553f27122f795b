"""Of which type a peer is, by its first bytes: whole ones, parts of them, and garbage."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, strategies as st

from transfer.transports.core.wire import HEADER, MAGIC, REFERENCE_BIT, TYPES_ON_WIRE, VERSION, SocketType
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.peer_type import (
    HEADER_BYTES,
    Detection,
    detect_in_client_hello,
    detect_in_header,
    socket_type_of,
)
from transfer.transports.security.credentials import ALPN_PROTOCOL

TYPES = st.sampled_from(TYPES_ON_WIRE)


@given(TYPES, st.integers(1, 200))
def test_a_hello_tells_its_type_when_its_header_is_there(kind, nbytes):
    first = encode(make_hello(kind))[:nbytes]
    assert detect_in_header(first) == (
        Detection(kind) if len(first) >= HEADER_BYTES else Detection(needed=HEADER_BYTES)
    )


@given(TYPES, st.booleans())
def test_a_plain_peers_first_message_does_too(kind, by_reference):
    bits = kind | REFERENCE_BIT * by_reference
    assert detect_in_header(HEADER.pack(MAGIC, VERSION, bits, 0, 1, 0, 5, 0)) == Detection(kind)


@given(st.binary(min_size=1, max_size=64))
def test_what_is_no_frame_tells_nothing_and_is_not_waited_for(first):
    found = detect_in_header(first)
    assert found.needed == 0 or MAGIC.to_bytes(4, "little").startswith(first[:4])
    assert found.socket_type is None or first[:4] == MAGIC.to_bytes(4, "little")


def client_hello(*protocols):
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    goes = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), goes, server_hostname="here").do_handshake()
    return goes.read()


@pytest.mark.parametrize(
    ("protocols", "kind"),
    [
        ((ALPN_PROTOCOL, f"{ALPN_PROTOCOL}/SUB"), SocketType.SUB),
        (("h2", f"{ALPN_PROTOCOL}/PUSH"), SocketType.PUSH),
        ((ALPN_PROTOCOL,), None),
        ((f"{ALPN_PROTOCOL}/NOTHING",), None),
        ((), None),
    ],
)
def test_with_tls_the_client_hello_tells_it(protocols, kind):
    whole = client_hello(*protocols)
    assert detect_in_client_hello(whole) == Detection(kind)
    for nbytes in (1, 5, 9, len(whole) - 1):
        found = detect_in_client_hello(whole[:nbytes])
        assert found.socket_type is None and nbytes < found.needed <= len(whole)
    assert detect_in_client_hello(b"GET / HTTP/1.1\r\n") == Detection()


@given(st.text(max_size=20))
def test_no_other_protocol_is_a_type(name):
    assert socket_type_of(name) is None
    assert socket_type_of(f"{ALPN_PROTOCOL}/{name}") == SocketType.__members__.get(name)
