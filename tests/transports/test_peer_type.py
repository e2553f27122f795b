"""Of which type a peer is, by its first bytes: whole ones, parts of them, and garbage."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, strategies as st

from transports.hello import encode
from transports.identity import make_hello
from transports.peer_type import (
    ENOUGH,
    OWN_PROTOCOL,
    Told,
    told_by_client_hello,
    told_by_header,
    told_by_protocol,
)
from transports.wire import HEADER, MAGIC, REFERENCE_BIT, VERSION, SocketType

TYPES = st.sampled_from(SocketType)


@given(TYPES, st.integers(1, 200))
def test_a_hello_tells_its_type_when_its_header_is_there(kind, nbytes):
    first = encode(make_hello(kind))[:nbytes]
    assert told_by_header(first) == (Told(kind) if len(first) >= ENOUGH else Told(wanted=ENOUGH))


@given(TYPES, st.booleans())
def test_a_plain_peers_first_message_does_too(kind, by_reference):
    bits = kind | REFERENCE_BIT * by_reference
    assert told_by_header(HEADER.pack(MAGIC, VERSION, bits, 0, 1, 0, 5, 0)) == Told(kind)


@given(st.binary(min_size=1, max_size=64))
def test_what_is_no_frame_tells_nothing_and_is_not_waited_for(first):
    told = told_by_header(first)
    assert told.wanted == 0 or MAGIC.to_bytes(4, "little").startswith(first[:4])
    assert told.socket_type is None or first[:4] == MAGIC.to_bytes(4, "little")


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
        ((OWN_PROTOCOL, f"{OWN_PROTOCOL}/SUB"), SocketType.SUB),
        (("h2", f"{OWN_PROTOCOL}/PUSH"), SocketType.PUSH),
        ((OWN_PROTOCOL,), None),
        ((f"{OWN_PROTOCOL}/NOTHING",), None),
        ((), None),
    ],
)
def test_with_tls_the_client_hello_tells_it(protocols, kind):
    whole = client_hello(*protocols)
    assert told_by_client_hello(whole) == Told(kind)
    for nbytes in (1, 5, 9, len(whole) - 1):
        told = told_by_client_hello(whole[:nbytes])
        assert told.socket_type is None and nbytes < told.wanted <= len(whole)
    assert told_by_client_hello(b"GET / HTTP/1.1\r\n") == Told()


@given(st.text(max_size=20))
def test_no_other_protocol_is_a_type(name):
    assert told_by_protocol(name) is None
    assert told_by_protocol(f"{OWN_PROTOCOL}/{name}") == SocketType.__members__.get(name)
