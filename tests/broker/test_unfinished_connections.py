"""Ports without TLS: those who say nothing keep nobody out."""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from tests.broker.all_fronts import HERE, all_fronts, dial, place, zmtp
from tests.broker.in_process_broker import running
from tests.broker.secure_peers import OWN_TOKEN, dial as dial_tls, is_disconnected, refused, secure, until
from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.clients.connection import has_ended
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.protocols.rqueue import encode_publish, encode_subscribe
from transfer.transports.errors import Broken, Closed, TransferError
from transfer.transports.security.settings import Security

#: the beginning of a frame, by the port that takes it
BEGINNINGS = {
    "ttp": b"TMQP\x02",
    "pybroker": b"",
    "rqueue": encode_subscribe("topic")[:-1],
    "abtp router": zmtp()[:64],
    "abtp pub": b"",
    "http": b"GET /livez HTTP/1.1\r\n",
}
#: a port of abtp is one of the front
FRONTS = {"abtp router": "abtp", "abtp pub": "abtp"}
SILENT = 20


def good(broker, port):
    """A program that is served."""
    host, number = place(broker, port)
    if port == "ttp":
        with TtpClient(host, number, timeout=10) as client:
            client.publish("good", b"kept", wait=True)
    elif port == "pybroker":
        with PyBrokerClient(host, number, timeout=10) as client:
            client.publish("good", b"kept")
            until(lambda: broker.fronts["pybroker"].counters["published"])
    elif port == "rqueue":
        with RqueueClient(host, number, timeout=10) as client:
            client.subscribe("good")
            client.publish("good", b"kept")
            assert client.recv().content == b"kept"
    elif port == "abtp router":
        with AbtpProducer(f"tcp://{host}:{number}", timeout=10) as client:
            client.publish("good", b"kept")
    else:
        with dial(broker, port) as end:
            end.sendall(zmtp(b"SUB") if port == "abtp pub" else b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
            assert end.recv(1)


def turns(broker):
    """Some turns of its loop: aiohttp takes a connection in the second one."""
    for _ in range(5):
        turned = threading.Event()
        broker.call(turned.set)
        assert turned.wait(10)


@pytest.mark.parametrize("port", list(BEGINNINGS))
def test_a_port_that_is_full_of_silent_connections_serves_the_next(tmp_path, port):
    few = Security(max_connections=3, max_unauthenticated=SILENT)
    with all_fronts(tmp_path, security=few) as broker, ExitStack() as silent:
        unfinished = []
        for _ in range(SILENT + 5):
            unfinished.append(silent.enter_context(dial(broker, port)))
            unfinished[-1].sendall(BEGINNINGS[port])
        until(lambda: refused(broker, FRONTS.get(port, port)))
        turns(broker)
        good(broker, port)
        until(
            lambda: is_disconnected(unfinished[0])
        )  # the oldest made room; before, it may have been greeted
        assert set(refused(broker, FRONTS.get(port, port))) == {"crowded"}


def fill(stack, broker, port, count, beginning=b""):
    ends = [stack.enter_context(dial(broker, port)) for _ in range(count)]
    for end in ends:
        end.sendall(beginning)
    return ends


def test_who_has_sent_a_frame_does_not_go_for_a_newcomer(tmp_path):
    with all_fronts(tmp_path, security=Security(max_connections=2)) as broker, ExitStack() as stack:
        front = broker.fronts["rqueue"]
        ends = fill(stack, broker, "rqueue", 2, encode_subscribe("news"))
        until(lambda: front.connections == 2 and not broker.listeners.unfinished)
        assert is_disconnected(stack.enter_context(dial(broker, "rqueue")))
        ends[0].sendall(encode_publish("news", 4) + b"here")
        for end in ends:
            assert end.recv(100).endswith(b"here")
        assert refused(broker, "rqueue") == {"crowded": 1}


def test_a_frame_that_is_there_already_is_read_before_its_connection_would_go(tmp_path, monkeypatch):
    with all_fronts(tmp_path, security=Security(max_connections=1)) as broker, ExitStack() as stack:
        front = broker.fronts["rqueue"]
        first, *_ = fill(stack, broker, "rqueue", 1)
        until(lambda: front.connections == 1)

        def at_once():
            """In one turn of the loop, so that nothing is read in between, and that turn has no time left."""
            monkeypatch.setattr(broker._lines, "may_read", lambda line: False)
            first.sendall(encode_publish("news", 4) + b"kept")
            unfinished, *_ = (unfinished for unfinished in broker.listeners._silent if len(unfinished))
            assert not unfinished.evict_oldest()
            monkeypatch.undo()

        done = []
        broker.call(lambda: done.append(at_once()))
        until(lambda: done)
        assert front.counters["published"] == 1 and front.connections == 1
        assert refused(broker, "rqueue") == {}


def test_no_other_port_may_have_more_of_them_than_the_process(tmp_path):
    """The oldest makes room at whichever port it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with all_fronts(tmp_path) as broker, ExitStack() as stack:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))  # a quarter of them: 300
            first = fill(stack, broker, "pybroker", 150)
            fill(stack, broker, "rqueue", 151)
            assert is_disconnected(first[0])
            until(lambda: broker.listeners.unfinished <= 300)
            until(lambda: refused(broker, "pybroker"))  # it is counted behind its end
            assert refused(broker, "pybroker") == {"crowded": 1} and not refused(broker, "rqueue")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("client", "front"),
    [(RqueueClient, "rqueue"), (PyBrokerClient, "pybroker"), (TtpClient, "ttp")],
    ids=["rqueue", "pybroker", "ttp"],
)
def test_a_client_that_was_put_out_comes_again(tmp_path, client, front):
    with all_fronts(tmp_path, security=Security(max_connections=1)) as broker:
        with client(HERE, broker.ports[front]) as idle:
            until(lambda: broker.fronts[front].connections == 1)
            with dial(broker, front) as silent:
                until(lambda: refused(broker, front) == {"crowded": 1})
                idle.publish("news", b"lost otherwise")
                until(lambda: broker.fronts[front].counters["published"])
                assert is_disconnected(silent)


@pytest.mark.parametrize("client", [RqueueClient, PyBrokerClient])
def test_a_client_that_is_put_out_again_loses_no_message_in_silence(client):
    with socket.create_server((HERE, 0)) as server:

        def put_out():
            for _ in range(2):
                connection, _ = server.accept()
                connection.close()
                closed.set()

        closed = threading.Event()
        closing = threading.Thread(target=put_out)
        closing.start()
        with client(HERE, server.getsockname()[1]) as idle:
            assert closed.wait(10)
            with pytest.raises(Broken, match="has closed the connection"):
                idle.publish("news", b"lost otherwise")
        closing.join(10)


def test_a_client_that_connects_again_is_closed_at_once(monkeypatch):
    with socket.create_server((HERE, 0)) as server:
        client = PyBrokerClient(HERE, server.getsockname()[1], timeout=20)
        server.accept()[0].close()
        until(lambda: has_ended(client._connection._socket, 0))
        begun, connecting = threading.Event(), socket.create_connection

        def slow(*arguments):
            begun.set()
            threading.Event().wait(3)
            return connecting(*arguments)

        monkeypatch.setattr(socket, "create_connection", slow)
        ends = []

        def publishes():
            try:
                client.publish("news", b"x")
            except TransferError as error:
                ends.append(type(error))

        publishing = threading.Thread(target=publishes)
        publishing.start()
        assert begun.wait(10)
        at = time.monotonic()
        client.close()
        assert time.monotonic() - at < 2.5
        publishing.join(10)
        assert ends == [Closed]


def test_a_drain_takes_no_new_connection_at_any_port(tmp_path):
    with all_fronts(tmp_path) as broker:
        places = {port: place(broker, port) for port in BEGINNINGS if port != "http"}
        broker.drain()
        assert broker.drained.wait(10)
        for port, where in places.items():
            with pytest.raises(ConnectionRefusedError), socket.create_connection(where, 10):
                raise AssertionError(port)


def test_tls_without_a_certificate_is_unfinished_until_the_first_frame(tmp_path, identities):
    few = identities.of_broker(clients="token", token=OWN_TOKEN, tokenless=True, max_connections=2)
    with (
        secure(tmp_path, identities, security=few, native=None, http=None) as broker,
        ExitStack() as stack,
    ):
        unfinished = [stack.enter_context(dial_tls(broker, "rqueue", identities, None)) for _ in range(3)]
        assert is_disconnected(unfinished[0])
        for end in unfinished[1:]:
            end.sendall(encode_subscribe("news"))
        until(lambda: not broker.listeners.unfinished)
        with dial_tls(broker, "rqueue", identities, None) as late:
            assert is_disconnected(late)
        assert refused(broker, "rqueue") == {"crowded": 2}


@pytest.mark.parametrize("router", ["tcp://lo:0", "tcp://localhost:*", "tcp://*:0"])
def test_abtp_listens_where_libzmq_would(tmp_path, router):
    anyone = Security(unauthenticated=True)
    with running(tmp_path, abtp=AbtpEndpoints(router, "tcp://lo:*"), security=anyone) as broker:
        with AbtpProducer(f"tcp://{HERE}:{place(broker, 'abtp router')[1]}", timeout=10) as client:
            client.publish("good", b"kept")
