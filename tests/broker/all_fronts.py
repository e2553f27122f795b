"""A broker with every front, and somebody at each of them, for tests of what goes wrong."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import zmq

from tests.broker.http_requests import ask
from tests.broker.in_process_broker import running
from transfer.broker.clients.abtp import AbtpProducer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import RqueueClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import AbtpEndpoints

HERE = "127.0.0.1"
ANYWHERE = AbtpEndpoints(f"tcp://{HERE}:0", f"tcp://{HERE}:0")


def zmtp(kind=b"DEALER"):
    """What libzmq says first, up to and with READY of a socket, so that frames can follow."""
    ready = b"\x05READY\x0bSocket-Type" + bytes([0, 0, 0, len(kind)]) + kind
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    return greeting + bytes([4, len(ready)]) + ready


def all_fronts(folder, **changes):
    """A broker with all fronts and HTTP."""
    return running(folder, abtp=ANYWHERE, http=0, **changes)


def place(broker, front):
    """(host, port) of a front, or of one of the sockets of "native" and "abtp"."""
    if front in broker.ports:
        return HERE, broker.ports[front]
    return HERE, int(broker.endpoints[front].rpartition(":")[2])


def dial(broker, front):
    """A plain connection."""
    return socket.create_connection(place(broker, front), 10)


@contextmanager
def clients(broker):
    """(ways to publish a payload on a topic, by front), each told that it was taken where there is a word."""
    own, ttp = broker.endpoints["requests"], broker.ports["ttp"]
    with (
        BrokerClient(own, timeout=10) as program,
        TtpClient(HERE, ttp) as trainer,
        PyBrokerClient(HERE, broker.ports["pybroker"]) as files,
        RqueueClient(HERE, broker.ports["rqueue"]) as queue,
        AbtpProducer(broker.endpoints["abtp router"]) as maker,
    ):
        yield {
            "native": program.publish,
            "ttp": lambda topic, data: trainer.publish(topic, data, wait=True),
            "pybroker": files.publish,
            "rqueue": queue.publish,
            "abtp": maker.publish,
        }


def serves(broker):
    """Whether each front takes a message and another program gets it, in this order."""
    with clients(broker) as publish, BrokerClient(broker.endpoints["requests"], timeout=10) as program:
        consumer = program.consume("all.is.well", "watch")
        for front, say in publish.items():
            say("all.is.well", front.encode())
            message = consumer.recv()
            assert bytes(message.data) == front.encode()
            consumer.ack(message, wait=True)
    assert ask(broker.ports["http"], "/readyz")[0] == 200
    return True


@contextmanager
def plain_dealer(broker):
    """A DEALER of libzmq at the ROUTER of abtp."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        dealer.connect(broker.endpoints["abtp router"])
        yield dealer
