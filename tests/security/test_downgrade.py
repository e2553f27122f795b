"""Less than was agreed on is never taken: older TLS, no TLS, no token; and each side is told why."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.security.conftest import TOKEN
from tests.security.relay import Relay
from transfer.transports.address import parse
from transfer.transports.core.wire import HEADER, MAGIC, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until


def test_a_plain_peer_at_a_port_with_tls(pair, pki):
    server, address = pair.serve(pki.security())
    found, told = pair.refused(server, pair.reach(address, Security()))
    assert isinstance(found, HandshakeError) and found.reason == "tls" and "does not speak TLS" in str(found)
    assert isinstance(told, HandshakeError) and "TLS" in str(told) and told.hint


def test_tls_at_a_plain_port(pair, pki):
    server, address = pair.serve(Security())
    found, told = pair.refused(server, pair.reach(address, pki.security()))
    assert isinstance(told, HandshakeError) and told.reason == "tls" and "certificates" in told.hint
    assert isinstance(found, HandshakeError) and "TLS" in str(found) and found.hint


@pytest.mark.parametrize("theirs", [{}, {"token": TOKEN}], ids=["nothing", "a token"])
@pytest.mark.parametrize("side", ["server", "client"])
def test_nobody_goes_on_without_tls(pair, pki, side, theirs):
    """However often it is tried."""
    mine, other = pki.security(token=theirs.get("token", "")), Security(**theirs)
    server, address = pair.serve(mine if side == "server" else other)
    client = pair.reach(address, other if side == "server" else mine, pause=0.001)
    until(lambda: len(client.failed) > 5 and len(server.failed) > 5, "some attempts")
    assert not client.connected and not server.connected


def test_a_plain_first_message_is_not_taken(pair, pki):
    """Peers of version 1 say no hello, and so nothing of who they are."""
    for security in (pki.security(), Security(token=TOKEN), pki.security(clients="token", token=TOKEN)):
        server, address = pair.serve(security)
        with socket.create_connection((address.host, address.port)) as peer:
            peer.sendall(HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 5, 0) + b"plain")
            until(lambda: server.failed, "the refusal")  # noqa: B023
        assert not server.connected and server.failed[0].reason in ("tls", "token")


def test_a_message_without_hello_inside_tls(pair, pki):
    server, address = pair.serve(pki.security())
    with socket.create_connection((address.host, address.port)) as plain:
        with _client(pki).wrap_socket(plain, server_hostname=address.host) as peer:
            peer.sendall(HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 5, 0) + b"plain")
            until(lambda: server.failed, "the refusal")
    assert server.failed[0].reason == "no_hello" and not server.connected


def _client(pki):
    context = ssl.create_default_context(cafile=pki.authority.path)
    context.load_cert_chain(pki.issued.certificate, pki.issued.key)
    return context


def test_a_client_with_tls_1_2_at_most(pair, pki):
    server, address = pair.serve(pki.security())
    context = _client(pki)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((address.host, address.port)) as plain,
        pytest.raises(ssl.SSLError) as caught,
    ):
        context.wrap_socket(plain, server_hostname=address.host)
    assert "PROTOCOL_VERSION" in str(caught.value)
    until(lambda: server.failed, "the refusal")
    assert server.failed[0].reason == "tls" and "protocol" in str(server.failed[0])


def test_a_server_with_tls_1_2_at_most(pair, pki):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.issued.certificate, pki.issued.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = pair.reach(parse(f"tcp://127.0.0.1:{listener.getsockname()[1]}"), pki.security())
        plain, _ = listener.accept()
        with plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_side=True)
        until(lambda: client.failed, "the refusal")
    assert client.failed[0].reason == "tls" and "version" in str(client.failed[0])


def test_a_session_is_not_taken_up_again(pair, pki):
    """It would outlive the certificate that it stands for."""
    server, address = pair.serve(pki.security())
    context = _client(pki)
    with (
        socket.create_connection((address.host, address.port)) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as peer,
    ):
        peer.sendall(encode(make_hello(SocketType.PUSH)))
        assert peer.recv(100)
        assert peer.session is None or not peer.session.has_ticket
    until(lambda: server.connected, "the connection")


def test_a_hello_that_says_it_needs_no_proof(pair):
    """The word `proves` is left out by somebody on the way: the two do not agree then."""
    server, address = pair.serve(Security(token=TOKEN))
    with Relay(address, lambda _, data: data.replace(b'"proves":true', b'"xxxxxx":true')) as between:
        found, told = pair.refused(server, pair.reach(between.address, Security(token=TOKEN)))
    assert found.reason == told.reason == "token"
