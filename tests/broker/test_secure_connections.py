"""Many who say nothing, few who say it slowly, large payloads, certificates that change, and the end."""

from __future__ import annotations

import resource
import socket
import ssl
import threading
from contextlib import ExitStack, contextmanager

import pytest

from tests.broker.secure_peers import (
    HERE,
    context_of,
    dial,
    is_disconnected,
    place,
    refused,
    secure,
    until,
)
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.delivery.subscriber import BrokerSubscriber
from transfer.transports.errors import Broken

MANY = 2000


@contextmanager
def descriptors(wanted):
    """So many may be open meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"{before[1]} descriptors are allowed, and {wanted} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("port", ["rqueue", "ttp", "http"])
def test_those_who_say_nothing_keep_nobody_out(tmp_path, identities, port):
    few = identities.of_broker(max_unauthenticated=300)
    with (
        descriptors(3 * MANY),
        secure(tmp_path, identities, security=few, native=None) as broker,
        ExitStack() as silent,
    ):
        unfinished = [
            silent.enter_context(socket.create_connection(place(broker, port), 20)) for _ in range(MANY)
        ]
        with dial(broker, port, identities, identities.client):
            pass
        assert sum(refused(broker, port).values()) >= MANY - 300
        assert set(refused(broker, port)) <= {"crowded"}
        assert is_disconnected(unfinished[0]), "the oldest made room"


@pytest.mark.parametrize("port", ["rqueue", "ttp", "abtp router"])
def test_who_takes_too_long_is_put_out(tmp_path, identities, port):
    with secure(tmp_path, identities, native=None, http=None, handshake_timeout=0.3) as broker:
        context = context_of(identities, identities.client)
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        with pytest.raises(ssl.SSLWantReadError):
            context.wrap_bio(came, goes, server_hostname=HERE).do_handshake()
        with (
            socket.create_connection(place(broker, port), 20) as slow,
            socket.create_connection(place(broker, port), 20) as silent,
            socket.create_connection(place(broker, port), 20) as half,
        ):
            slow.sendall(goes.read()[:50])
            half.sendall(b"\x16")
            for connection in (slow, silent, half):
                assert is_disconnected(connection)
        front = port.partition(" ")[0]
        assert refused(broker, front) == {"late": 3}


def test_no_more_are_let_in_than_are_allowed(tmp_path, identities):
    two = identities.of_broker(max_connections=2)
    with (
        secure(tmp_path, identities, security=two, native=None, http=None) as broker,
        ExitStack() as open_now,
    ):
        for _ in range(2):
            open_now.enter_context(dial(broker, "rqueue", identities, identities.client))
        until(lambda: broker.fronts["rqueue"].connections == 2)
        with dial(broker, "rqueue", identities, identities.client) as third:
            assert is_disconnected(third)
        assert refused(broker, "rqueue") == {"crowded": 1}
        open_now.close()
        until(lambda: broker.fronts["rqueue"].connections == 0)
        with dial(broker, "rqueue", identities, identities.client):
            until(lambda: broker.fronts["rqueue"].connections == 1)


def test_a_certificate_is_changed_without_a_restart(tmp_path, identities):
    issued = identities.authority.issue("rotating")
    with secure(tmp_path, identities, security=identities.shown_by(issued), native=None) as broker:

        def shown(port):
            with dial(broker, port, identities, identities.client) as connection:
                return connection.getpeercert(True)

        security = identities.shown_by(identities.client)
        with RqueueClient(HERE, broker.ports["rqueue"], timeout=10, security=security) as old:
            old.subscribe("t")
            before = {port: shown(port) for port in ("rqueue", "ttp", "http", "abtp router")}
            identities.authority.issue("rotating")
            for port, certificate in before.items():
                until(lambda port=port, certificate=certificate: shown(port) != certificate)
            old.publish("t", b"still here")
            assert old.recv().content == b"still here"


@contextmanager
def three(broker, identities):
    """(slow, quick, trainer): the first two have subscribed to "weights"."""
    security = identities.shown_by(identities.client)
    with ExitStack() as stack:
        slow, quick, trainer = (
            stack.enter_context(TtpClient(HERE, broker.ports["ttp"], timeout=20, security=security))
            for _ in range(3)
        )
        for subscriber in (slow, quick):
            subscriber.subscribe("weights")
        yield slow, quick, trainer


def test_large_payloads_pass_whole_and_a_slow_subscriber_with_room_holds_nobody_up(tmp_path, identities):
    count = 6
    # all of them fit, whatever the system takes itself
    payload = bytes(range(256)) * (BrokerSubscriber.limit // 256 // (count + 1))
    with secure(tmp_path, identities, native=None, http=None) as broker:
        with three(broker, identities) as (slow, quick, trainer):
            got = []
            thread = threading.Thread(target=lambda: got.extend(quick.recv() for _ in range(count)))
            thread.start()
            sent = [payload[number:] for number in range(count)]
            for data in sent:
                trainer.publish("weights", data, wait=True)
            thread.join()
            for received in (got, [slow.recv() for _ in range(count)]):
                assert [bytes(one.data) == data for one, data in zip(received, sent, strict=True)] == [
                    True
                ] * count


def test_who_takes_nothing_of_what_does_not_fit_is_put_out_and_the_others_get_it_whole(tmp_path, identities):
    payload = bytes(range(256)) * (BrokerSubscriber.limit // 128)  # more than waits for it and in the system
    with secure(tmp_path, identities, native=None, http=None, stall_timeout=0.5) as broker:
        with three(broker, identities) as (slow, quick, trainer):
            got = []
            thread = threading.Thread(target=lambda: got.append(quick.recv()))
            thread.start()
            trainer.publish("weights", payload, wait=True)
            thread.join()
            assert bytes(got[0].data) == payload
            with pytest.raises(Broken):
                slow.recv()
            assert broker.hub.counts["closed_slow"] == 1


def test_small_messages_come_in_their_order_to_many(tmp_path, identities):
    security = identities.shown_by(identities.client)
    with secure(tmp_path, identities, native=None, http=None) as broker:
        with (
            RqueueClient(HERE, broker.ports["rqueue"], timeout=20, security=security) as teller,
            RqueueClient(HERE, broker.ports["rqueue"], timeout=20, security=security) as hearer,
        ):
            hearer.subscribe("n")
            until(lambda: len(broker.hub.fanout.subscriptions()) == 1)
            for number in range(3000):
                teller.publish("n", number.to_bytes(4, "big") * (number % 50 + 1))
            for number in range(3000):
                assert hearer.recv().content == number.to_bytes(4, "big") * (number % 50 + 1)


def test_a_clean_stop_lets_them_finish_and_an_end_ends_them(tmp_path, identities):
    security = identities.shown_by(identities.client)
    with secure(tmp_path, identities, native=None, http=None) as broker:
        port = broker.ports["ttp"]
        with TtpClient(HERE, port, timeout=20, security=security) as reader:
            reader.subscribe("t")
            with TtpClient(HERE, port, timeout=20, security=security) as writer:
                writer.publish("t", bytes(20 << 20), wait=True)
            with socket.create_connection(place(broker, "rqueue"), 20) as unfinished:
                until(lambda: broker.listeners.unfinished == 1)
                broker.drain()
                assert is_disconnected(unfinished)
                assert not refused(broker, "rqueue"), "not since it took too long"
            with pytest.raises(OSError), socket.create_connection((HERE, port), 5) as late:
                assert late.recv(1) != b""
            assert not broker.drained.wait(0.3), "the reader has not taken it yet"
            assert len(reader.recv().data) == 20 << 20
            assert broker.drained.wait(20)
            broker.close()
            with pytest.raises(Broken):
                reader.recv(20)
