"""Every port of a broker with mutual TLS: who may connect, who may not, and what is counted of those."""

from __future__ import annotations

import socket
import ssl

import pytest

import transfer
from tests.broker.secure_peers import (
    HERE,
    TCP_PORTS,
    context_of,
    dial,
    is_disconnected,
    place,
    refused,
    secure,
    until,
)
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.protocols.ttp import HEADER_SIZE, TtpKind, encode_head
from transfer.transports.errors import Again, Broken, HandshakeError, TransferError
from transfer.transports.security.settings import Security


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory, identities):
    with secure(tmp_path_factory.mktemp("broker"), identities) as broker:
        yield broker


@pytest.fixture
def broker(one_broker):
    """With nobody counted yet."""
    for counts in one_broker.listeners.refused.values():
        counts.clear()
    return one_broker


def clients_of(broker, security):
    ports = broker.ports
    return {
        "ttp": lambda: TtpClient(HERE, ports["ttp"], name="test", timeout=10, security=security),
        "pybroker": lambda: PyBrokerClient(HERE, ports["pybroker"], timeout=10, security=security),
        "rqueue": lambda: RqueueClient(HERE, ports["rqueue"], timeout=10, security=security),
    }


def test_each_front_serves_who_shows_a_certificate(broker, identities):
    security = identities.shown_by(identities.client)
    make = clients_of(broker, security)
    with (
        transfer.Context(security=security) as context,
        make["ttp"]() as ttp,
        make["pybroker"]() as files,
        make["rqueue"]() as queue,
        BrokerClient(broker.endpoints["requests"], timeout=10, context=context) as own,
        AbtpProducer(broker.endpoints["abtp router"], timeout=10, security=security) as maker,
        AbtpSubscriber(["all"], broker.endpoints["abtp pub"], timeout=10, security=security) as listener,
    ):
        consumer = own.consume("all", "watch")
        ttp.subscribe("all")
        queue.subscribe("all")
        until(lambda: len(broker.hub.fanout.subscriptions()) >= 3)
        for front, say in {
            "native": own.publish,
            "ttp": lambda topic, data: ttp.publish(topic, data, wait=True),
            "pybroker": files.publish,
            "rqueue": queue.publish,
            "abtp": maker.publish,
        }.items():
            say("all", front.encode())
            assert bytes(consumer.recv().data) == front.encode()
            assert bytes(ttp.recv().data) == front.encode()
            assert bytes(queue.recv().content) == front.encode()
        assert bytes(listener.recv().payload)
    assert all(not refused(broker, front) for front in ("ttp", "pybroker", "rqueue", "abtp"))


@pytest.mark.parametrize("port", TCP_PORTS)
def test_who_has_no_good_certificate_is_put_out(broker, identities, port):
    front = port.partition(" ")[0]
    expected = {}
    for kind, issued in identities.bad.items():
        if front == "http" and issued is None:
            continue
        with dial(broker, port, identities, issued) as connection:
            assert is_disconnected(connection), kind
        word = identities.words.get(kind, "certificate")
        expected[word] = expected.get(word, 0) + 1
    until(lambda: refused(broker, front) == expected)
    with socket.create_connection(place(broker, port), 20) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(600))
        assert is_disconnected(plain)
    until(lambda: refused(broker, front) == expected | {"plain": 1})


def test_other_versions_of_tls_are_not_spoken(broker, identities):
    context = context_of(identities, identities.client)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    for port in TCP_PORTS:
        with socket.create_connection(place(broker, port), 20) as plain:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain, server_hostname=HERE)


@pytest.mark.parametrize("kind", ["no certificate", "wrong authority", "expired", "not yet", "self-signed"])
def test_clients_say_why_they_are_not_let_in(broker, identities, kind):
    security = identities.shown_by(identities.bad[kind])
    for front, make in clients_of(broker, security).items():
        with pytest.raises((HandshakeError, Broken)) as caught:
            with make() as client:
                if front != "ttp":  # whose constructor asks already
                    client.subscribe("t") if front == "rqueue" else client.publish("t", b"x")
                    client.recv(10) if front == "rqueue" else client.fetch("t")
        # the word that TLS sends may be lost where the connection is reset
        assert "tls: no TLS with" in str(caught.value) or isinstance(caught.value, Broken)


@pytest.mark.parametrize("kind", ["wrong authority", "expired", "self-signed"])
def test_clients_refuse_a_broker_with_such_a_certificate(tmp_path, identities, kind):
    bad = identities.bad[kind]
    good = identities.shown_by(identities.client)
    with secure(tmp_path, identities, security=identities.shown_by(bad), http=None, native=None) as broker:
        for make in clients_of(broker, good).values():
            with pytest.raises(HandshakeError, match="certificate is refused") as caught:
                make()
            assert "TRANSFER_TLS_CA" in caught.value.hint
        with AbtpProducer(broker.endpoints["abtp router"], timeout=0.4, security=good) as maker:
            with pytest.raises(Again, match="certificate is refused"):
                maker.publish("t", b"x")


def test_a_certificate_of_another_name_is_refused_unless_it_is_asked_for(tmp_path, identities):
    elsewhere = identities.authority.issue("elsewhere", hosts=("broker.internal",))
    with secure(tmp_path, identities, security=identities.shown_by(elsewhere)) as broker:
        with pytest.raises(HandshakeError, match="certificate is refused"):
            RqueueClient(HERE, broker.ports["rqueue"], security=identities.shown_by(identities.client))
        named = identities.shown_by(identities.client, server_name="broker.internal")
        with RqueueClient(HERE, broker.ports["rqueue"], security=named) as queue:
            queue.publish("t", b"x")
        with AbtpProducer(broker.endpoints["abtp router"], timeout=10, security=named) as maker:
            maker.publish("t", b"x")


def test_a_client_with_tls_never_speaks_plainly(tmp_path, identities):
    with secure(tmp_path, identities, security=Security()) as broker:
        for make in clients_of(broker, identities.shown_by(identities.client)).values():
            with pytest.raises(TransferError) as caught:
                make()
            assert isinstance(caught.value, HandshakeError | Again), caught.value


def test_clients_without_tls_hear_what_may_be_wanted(broker):
    for front, make in clients_of(broker, Security()).items():
        with pytest.raises(Broken) as caught, make() as client:
            client.fetch("t") if front == "pybroker" else client.subscribe("t")
            client.recv(10)
        assert "TRANSFER_TLS_CA" in caught.value.hint
    with transfer.Context(security=Security()) as context, context.socket(transfer.PUSH) as push:
        push.connect(broker.endpoints["pushes"])
        with pytest.raises(Again) as caught:
            push.wait_for_peers(1, timeout=1)
        assert "TRANSFER_TLS_CA" in caught.value.hint


def test_a_client_hello_that_comes_byte_by_byte_is_waited_for(broker, identities):
    context = context_of(identities, identities.client)
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(theirs, ours, server_hostname=HERE)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = ours.read()
    with socket.create_connection(place(broker, "ttp"), 20) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(hello), 7):
            slow.sendall(hello[at : at + 7])
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                theirs.write(slow.recv(1 << 16))
        # what comes then is shorter than the ClientHello was
        tls.write(encode_head(TtpKind.HEARTBEAT, stream_id=7))
        slow.sendall(ours.read())
        while True:
            try:
                assert tls.read(HEADER_SIZE)[:4] == b"TMQP"
                break
            except ssl.SSLWantReadError:
                theirs.write(slow.recv(1 << 16))
    with socket.create_connection(place(broker, "ttp"), 20) as half:
        half.sendall(hello[:100])
        half.shutdown(socket.SHUT_WR)
        assert is_disconnected(half)
    assert refused(broker, "ttp") == {"closed": 1}


# -- abtp ------------------------------------------------------------------------------------------------


def test_direct_delivery_and_large_payloads_go_through_the_relay(tmp_path, identities, monkeypatch):
    monkeypatch.setattr("transfer.broker.fronts.abtp_relay._MOST", 1 << 14)
    security = identities.shown_by(identities.client)
    payload = bytes(range(256)) * 40_000  # which plain abtp delivers, too
    with secure(tmp_path, identities, native=None, http=None) as broker:
        router = broker.endpoints["abtp router"]
        deliver(router, security, payload)
        until(lambda: broker.fronts["abtp"].connections == 0)
        assert (tmp_path / "abtp").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "abtp").exists()


def deliver(router, security, payload):
    with (
        AbtpConsumer("worker", ["orders.*"], router, timeout=10, security=security) as consumer,
        AbtpProducer(router, timeout=10, security=security) as maker,
    ):
        maker.publish("orders.large", payload)
        message = consumer.recv()
        assert bytes(message.payload) == payload
        consumer.ack(message, confirm=True)
