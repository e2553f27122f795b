"""Less than was agreed on is never taken: older TLS, no TLS, no token; and each side is told why."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.security.conftest import TOKEN
from tests.security.relaying import Between
from transfer.transports.address import parse
from transfer.transports.core.wire import HEADER, MAGIC, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.hello import encode
from transfer.transports.handshake.identity import make_hello
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until


def test_a_plain_peer_at_a_port_with_tls(stage, paper):
    server, address = stage.serve(paper.security())
    found, told = stage.refused(server, stage.reach(address, Security()))
    assert isinstance(found, HandshakeError) and found.reason == "tls" and "does not speak TLS" in str(found)
    assert isinstance(told, HandshakeError) and "TLS" in str(told) and told.hint


def test_tls_at_a_plain_port(stage, paper):
    server, address = stage.serve(Security())
    found, told = stage.refused(server, stage.reach(address, paper.security()))
    assert isinstance(told, HandshakeError) and told.reason == "tls" and "certificates" in told.hint
    assert isinstance(found, HandshakeError) and "TLS" in str(found) and found.hint


@pytest.mark.parametrize("theirs", [{}, {"token": TOKEN}], ids=["nothing", "a token"])
@pytest.mark.parametrize("side", ["server", "client"])
def test_nobody_goes_on_without_tls(stage, paper, side, theirs):
    """However often it is tried."""
    mine, other = paper.security(token=theirs.get("token", "")), Security(**theirs)
    server, address = stage.serve(mine if side == "server" else other)
    client = stage.reach(address, other if side == "server" else mine, pause=0.001)
    until(lambda: len(client.failed) > 5 and len(server.failed) > 5, "some attempts")
    assert not client.connected and not server.connected


def test_a_plain_first_message_is_not_taken(stage, paper):
    """Peers of version 1 say no hello, and so nothing of who they are."""
    for security in (paper.security(), Security(token=TOKEN), paper.security(clients="token", token=TOKEN)):
        server, address = stage.serve(security)
        with socket.create_connection((address.host, address.port)) as peer:
            peer.sendall(HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 5, 0) + b"plain")
            until(lambda: server.failed, "the refusal")  # noqa: B023
        assert not server.connected and server.failed[0].reason in ("tls", "token")


def test_a_message_without_hello_inside_tls(stage, paper):
    server, address = stage.serve(paper.security())
    with socket.create_connection((address.host, address.port)) as plain:
        with _client(paper).wrap_socket(plain, server_hostname=address.host) as peer:
            peer.sendall(HEADER.pack(MAGIC, 1, SocketType.PUSH, 0, 1, 0, 5, 0) + b"plain")
            until(lambda: server.failed, "the refusal")
    assert server.failed[0].reason == "no_hello" and not server.connected


def _client(paper):
    context = ssl.create_default_context(cafile=paper.authority.path)
    context.load_cert_chain(paper.issued.certificate, paper.issued.key)
    return context


def test_a_client_with_tls_1_2_at_most(stage, paper):
    server, address = stage.serve(paper.security())
    context = _client(paper)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((address.host, address.port)) as plain,
        pytest.raises(ssl.SSLError) as caught,
    ):
        context.wrap_socket(plain, server_hostname=address.host)
    assert "PROTOCOL_VERSION" in str(caught.value)
    until(lambda: server.failed, "the refusal")
    assert server.failed[0].reason == "tls" and "protocol" in str(server.failed[0])


def test_a_server_with_tls_1_2_at_most(stage, paper):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paper.issued.certificate, paper.issued.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = stage.reach(parse(f"tcp://127.0.0.1:{listener.getsockname()[1]}"), paper.security())
        plain, _ = listener.accept()
        with plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_side=True)
        until(lambda: client.failed, "the refusal")
    assert client.failed[0].reason == "tls" and "version" in str(client.failed[0])


def test_a_session_is_not_taken_up_again(stage, paper):
    """It would outlive the certificate that it stands for."""
    server, address = stage.serve(paper.security())
    context = _client(paper)
    with (
        socket.create_connection((address.host, address.port)) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as peer,
    ):
        peer.sendall(encode(make_hello(SocketType.PUSH)))
        assert peer.recv(100)
        assert peer.session is None or not peer.session.has_ticket
    until(lambda: server.connected, "the connection")


def test_a_hello_that_says_it_needs_no_proof(stage):
    """The word `proves` is left out by somebody on the way: the two do not agree then."""
    server, address = stage.serve(Security(token=TOKEN))
    with Between(address, lambda _, data: data.replace(b'"proves":true', b'"xxxxxx":true')) as between:
        found, told = stage.refused(server, stage.reach(between.address, Security(token=TOKEN)))
    assert found.reason == told.reason == "token"
