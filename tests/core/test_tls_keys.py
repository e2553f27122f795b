"""TLS with a key that both sides have, and the agreement on one by X25519."""

from __future__ import annotations

import importlib
import os
import socket
import ssl
from contextlib import suppress

import pytest

from tests.core.certificates import drained, is_readable, shake, soon
from transfer.transports.core import pure
from transfer.transports.errors import InternalError, NotSupported, SecurityError

KEY = b"k" * 32
IDENTITY = b"a client"
BASE_POINT = b"\x09" + bytes(31)


@pytest.fixture
def native():
    try:
        return importlib.import_module("transfer.transports.core.native")
    except ImportError as error:
        pytest.skip(f"the compiled core is not built: {error}")


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    for end in (near, far):
        end.setblocking(False)
    with near, far:
        yield near, far


def channels(native, ends, key=(IDENTITY, KEY), finds=lambda identity: KEY):
    near, far = ends
    client = native.TlsChannel(native.TlsContext(server=False, keyed=True), near.fileno(), key=key)
    server = native.TlsChannel(native.TlsContext(server=True, keyed=True), far.fileno(), finds=finds)
    return client, server


def outcome(*channels):
    """The first error of a handshake; None: it succeeded."""
    for _ in range(20):
        for channel in channels:
            try:
                channel.handshake()
            except OSError as error:
                return error
        if all(channel.done for channel in channels):
            return None
    return TimeoutError("the handshake does not end")


def test_both_have_the_key(native, ends):
    asked = []
    client, server = channels(native, ends, finds=lambda identity: asked.append(identity) or KEY)
    shake(client, server)
    assert asked == [IDENTITY]
    assert client.binding == server.binding and len(client.binding) == 32
    assert not client.peer_certificate and not server.peer_certificate
    client.send(b"hello")
    soon(lambda: is_readable(ends[1]))
    assert server.recv(5) == b"hello"


def test_two_connections_have_different_bindings(native):
    found = set()
    for _ in range(2):
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False), far.setblocking(False)
            client, server = channels(native, (near, far))
            shake(client, server)
            found.add(client.binding)
    assert len(found) == 2


def test_a_key_is_bytes(native, ends):
    """bytes(32) would be one that everyone knows."""
    client, server = channels(native, ends, key=(IDENTITY, bytes(32)), finds=lambda identity: 32)
    assert isinstance(outcome(client, server), OSError)


def no_key(identity):
    raise KeyError(identity)


@pytest.mark.parametrize(
    "finds", [lambda identity: b"x" * 32, lambda identity: b"", lambda identity: b"y" * 5000, no_key,
              lambda identity: None],
    ids=["another", "empty", "too long", "an exception", "nothing"],
)  # fmt: skip
def test_a_wrong_key_is_refused(native, ends, finds):
    client, server = channels(native, ends, finds=finds)
    assert isinstance(outcome(client, server), OSError)
    assert not client.done


@pytest.mark.parametrize("identity", [b"", b"i" * 2000])
def test_an_identity_that_does_not_fit_is_refused(native, ends, identity):
    client, server = channels(native, ends, key=(identity, KEY), finds=no_key)
    assert isinstance(outcome(client, server), OSError)


def test_a_client_with_a_key_accepts_no_certificate(native, ends, pki):
    """Not even one of an authority that the system trusts: there is no name to check it against."""
    near, far = ends
    client = native.TlsChannel(
        native.TlsContext(server=False, keyed=True), near.fileno(), key=(IDENTITY, KEY)
    )
    server = native.TlsChannel(pki.context(native, server=True, clients="none", protocols=()), far.fileno())
    assert isinstance(outcome(client, server), OSError)
    assert not client.done


def test_a_server_with_a_key_accepts_no_client_without(native, ends):
    near, far = ends
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_socket(near, do_handshake_on_connect=False)
    server = native.TlsChannel(native.TlsContext(server=True, keyed=True), far.fileno(), finds=lambda _: KEY)
    with client:
        error = None
        for _ in range(20):
            with suppress(ssl.SSLError):
                client.do_handshake()
            try:
                server.handshake()
            except OSError as found:
                error = found
                break
        assert error is not None and not server.done


def test_the_older_exchange_is_not_taken(native, ends):
    """A key alone would protect no earlier message once it is known: each connection has fresh ones."""
    near, far = ends
    server = native.TlsChannel(native.TlsContext(server=True, keyed=True), far.fileno(), finds=lambda _: KEY)
    near.send(bytes([22, 3, 1, 0, 5, 1, 0, 0, 1, 0]))
    assert isinstance(outcome(server), OSError)


def test_a_channel_needs_its_key(native, ends):
    for server in (False, True):
        with pytest.raises(InternalError):
            native.TlsChannel(native.TlsContext(server=server, keyed=True), ends[0].fileno())


def test_large_data_both_ways(native, ends):
    client, server = channels(native, ends)
    shake(client, server)
    for channel in (client, server):
        channel.ahead()
    data = os.urandom(100_000)
    rest, came = memoryview(data), b""
    while len(came) < len(data):
        if rest:
            with suppress(BlockingIOError):
                rest = rest[client.send(rest) :]
        client.flush()
        came += drained(server, ends[1], 32 * 1024)[0]
    assert came == data


# --- X25519 ---------------------------------------------------------------------------------------


def test_the_example_of_rfc_7748(native):
    secret = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert native.x25519(secret, public).hex() == shared


def test_both_sides_agree(native):
    mine, yours = os.urandom(32), os.urandom(32)
    public = [native.x25519(secret, BASE_POINT) for secret in (mine, yours)]
    assert native.x25519(mine, public[1]) == native.x25519(yours, public[0])


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"short", b"l" * 33])
def test_keys_that_are_none_are_refused(native, public):
    """Among them those with which everyone would agree on the same secret."""
    with pytest.raises(SecurityError):
        native.x25519(os.urandom(32), public)


def test_the_python_core_has_neither():
    with pytest.raises(NotSupported, match="Python core"):
        pure.x25519(bytes(32), BASE_POINT)
    with pytest.raises(NotSupported, match="Python core"):
        pure.TlsContext(server=True, keyed=True)
