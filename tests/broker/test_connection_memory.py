"""What a connection holds of the memory that all read into: nothing when it has ended, whenever the collector
comes, and little more than what waits for it while it does not read."""

from __future__ import annotations

import gc
import socket
import time

import pytest

from tests.broker.in_process_broker import FREE, running
from tests.fuzz.broker_conversations import talk
from tests.fuzz.dialers import plain
from tests.fuzz.hostile_clients import HostileClients
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.net.connection import Connection
from transfer.broker.protocols.rqueue import encode_subscribe
from transfer.transports.core import IMPLEMENTATION

#: topics remember those who listened until the next message
REMEMBERED = 40


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ended():
    return [one for one in gc.get_objects() if isinstance(one, Connection) and one.closed]


def leases():
    return [one for one in gc.get_objects() if type(one).__name__ == "Lease"]


@pytest.mark.parametrize("port", ["ttp", "pybroker", "rqueue"])
def test_hostile_clients_leave_nothing(tmp_path, port, no_collector):
    with running(tmp_path) as broker:
        before = len(leases())
        clients = HostileClients(plain(("127.0.0.1", broker.ports[port])))
        for seed in range(1500):
            clients.connect(talk(port, seed), seed)
        clients.close()
        deadline = time.monotonic() + 20
        while len(ended()) > REMEMBERED or len(leases()) > before + 2:
            assert time.monotonic() < deadline, (len(ended()), len(leases()))
            time.sleep(0.1)


#: aiohttp's own connections are in cycles: `http` is not among them
ALL_OURS = [
    "requests", "requests frames", "pushes", "subscriptions", "ttp", "pybroker", "rqueue", "abtp router",
    "abtp pub", "spool", "rows",
]  # fmt: skip


@pytest.mark.parametrize("port", ALL_OURS)
def test_no_connection_waits_for_the_collector(tmp_path, port, no_collector):
    """It stops every thread for as long as it looks through all that there is."""
    with running(tmp_path, spool=FREE, abtp=AbtpEndpoints(FREE, FREE)) as broker:
        where = broker.ports.get(port) or int(broker.endpoints[port.removesuffix(" frames")].split(":")[2])
        for seeds in (range(20), range(100, 200)):
            clients = HostileClients(plain(("127.0.0.1", where)))
            for seed in seeds:
                clients.connect(talk(port, seed), seed)
            clients.close()
            time.sleep(0.5)
            left = gc.collect()
        assert left < 400, "a connection that leaves a cycle leaves 20 objects and more"


@pytest.mark.skipif(IMPLEMENTATION != "native", reason="the twin's leases are bytearrays to the collector")
def test_a_subscriber_that_does_not_read_holds_no_arena_for_a_small_message(tmp_path):
    with running(tmp_path, keep=False) as broker, RqueueClient("127.0.0.1", broker.ports["rqueue"]) as queue:
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", broker.ports["rqueue"]))
            silent.sendall(encode_subscribe("wanted"))
            queue.subscribe("done")
            before, most = len(leases()), 0
            for number in range(800):
                queue.publish("wanted", bytes(10_000))
                for _ in range(60):
                    queue.publish("not wanted", bytes(12_000))
                if number % 10 == 9:
                    queue.publish("done", b"")
                    assert queue.recv(20).topic == "done"
                    most = max(most, len(leases()) - before)
            assert broker.hub.fanout.subscriptions() and most < 60, most
