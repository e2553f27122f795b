"""Clients of protocols that know no token, where there is one: who has the port gets nothing of theirs."""

from __future__ import annotations

import socket

import pytest

from tests.broker.secure_peers import TOKEN, secure
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.transports.errors import SecurityError
from transfer.transports.security.settings import Security

HERE = "127.0.0.1"


def at_once(kind):
    return lambda port, security: kind(HERE, port, timeout=10, security=security)


CLIENTS = {
    "ttp": at_once(TtpClient),
    "pybroker": at_once(PyBrokerClient),
    "rqueue": at_once(RqueueClient),
    "abtp producer": lambda port, security: AbtpProducer(f"tcp://{HERE}:{port}", security=security),
    "abtp consumer": lambda port, security: AbtpConsumer(
        "it", endpoint=f"tcp://{HERE}:{port}", timeout=0.1, security=security
    ),
    "abtp subscriber": lambda port, security: AbtpSubscriber(
        endpoint=f"tcp://{HERE}:{port}", security=security
    ),
}


@pytest.fixture
def stranger():
    """Another user's program, at the port that the broker leaves free."""
    with socket.create_server((HERE, 0)) as server:
        server.settimeout(10)
        yield server


@pytest.mark.parametrize("kind", CLIENTS)
def test_with_a_token_they_connect_to_no_unauthenticated_server(stranger, monkeypatch, kind):
    port = stranger.getsockname()[1]
    monkeypatch.setenv("TRANSFER_TOKEN", TOKEN)
    for security in (None, Security(token=TOKEN)):
        with pytest.raises(SecurityError, match="the protocol has no tokens") as caught:
            CLIENTS[kind](port, security)
        assert "TRANSFER_TOKENLESS=allow" in caught.value.hint
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.accept()


@pytest.mark.parametrize("kind", ["ttp", "pybroker", "rqueue", "abtp producer"])
@pytest.mark.parametrize("allowed", ["tokenless", "unauthenticated", "no token"])
def test_unless_a_word_allows_it(stranger, kind, allowed):
    security = Security() if allowed == "no token" else Security(token=TOKEN, **{allowed: True})
    with CLIENTS[kind](stranger.getsockname()[1], security):
        stranger.accept()[0].close()


def test_a_brokers_certificate_shows_who_answers(tmp_path, identities):
    security = identities.of_broker(clients="token", token=TOKEN, tokenless=True)
    with (
        secure(tmp_path, identities, security=security, native=None, http=None) as broker,
        RqueueClient(HERE, broker.ports["rqueue"], security=identities.shown_by(None, token=TOKEN)) as queue,
    ):
        queue.subscribe("news")
        queue.publish("news", b"it")
        assert queue.recv(timeout=10).content == b"it"


def test_a_socket_that_is_a_file_is_this_users(tmp_path):
    AbtpProducer(f"ipc://{tmp_path}/router", security=Security(token=TOKEN)).close()
    with pytest.raises(SecurityError):
        AbtpProducer("ipc://@router", security=Security(token=TOKEN))
