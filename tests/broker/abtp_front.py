"""An abtp front over a real hub, with direct delivery in memory, and plain sockets for it."""

from __future__ import annotations

import json
from contextlib import contextmanager

import zmq

from tests.broker.dispatcher_in_memory import DispatcherInMemory
from tests.broker.single_front import single_front
from transfer.broker.clients.abtp import AbtpSubscriber
from transfer.broker.fronts.abtp import AbtpFront
from transfer.broker.fronts.abtp_sockets import AbtpSettings

ANYWHERE = "tcp://127.0.0.1:0"
#: milliseconds that a plain socket waits
PATIENCE = 10_000


class AbtpInMemory(AbtpFront):
    """A front with direct delivery in memory. No TCP connection is handed to it: libzmq listens by itself."""

    def __init__(self, hub, lines, rules, routes, limits):
        self.direct = DispatcherInMemory(lines.loop, rules, routes)
        settings = AbtpSettings(ANYWHERE, ANYWHERE, **limits)
        super().__init__(hub, lines.loop, self.direct, settings)

    def connected(self, connection, peer):
        connection.close()

    def close(self):
        self.direct.close()
        super().close()


@contextmanager
def running(folder, *, rules=None, routes=(), **limits):
    def make(hub, lines):
        return AbtpInMemory(hub, lines, rules, routes, limits)

    with single_front(folder, make, durable=lambda name: name.startswith("kept")) as broker:
        yield broker


@contextmanager
def plain(broker):
    """Makes plain sockets that are connected to the broker, by their type."""
    context, made = zmq.Context(), []

    def connect(kind):
        socket = context.socket(kind)
        made.append(socket)  # they stay open until the end
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, PATIENCE)
        socket.connect(router(broker) if kind != zmq.SUB else pub(broker))
        return socket

    yield connect
    context.destroy(0)


def router(broker):
    return broker.front.endpoints["router"]


def pub(broker):
    return broker.front.endpoints["pub"]


def direct(broker):
    return broker.front.direct


@contextmanager
def subscribed(broker, *prefixes):
    """A subscriber of whom the broker has heard."""
    known = len(broker.front.subscriber._prefixes)
    with AbtpSubscriber(prefixes, pub(broker)) as subscriber:
        broker.until(lambda: len(broker.front.subscriber._prefixes) == known + len(prefixes))
        yield subscriber
    broker.until(lambda: len(broker.front.subscriber._prefixes) == known)


def registered(sockets, consumer_id, subscriptions, **capabilities):
    """A plain DEALER that has registered."""
    socket = sockets(zmq.DEALER)
    control(
        socket,
        type="consumer.register",
        consumer_id=consumer_id,
        mode="direct",
        subscriptions=subscriptions,
        capabilities={"supports_ack": True, "max_inflight": 10, **capabilities},
    )
    answer = answered(socket)
    assert answer["type"] == "consumer.registered" and answer["status"] == "registered"
    return socket, answer["session_id"]


def control(socket, **said):
    socket.send_multipart([b"", b"_control", json.dumps(said).encode()])


def answered(socket):
    empty, topic, data = socket.recv_multipart()
    assert (empty, topic) == (b"", b"_control")
    return json.loads(data)
