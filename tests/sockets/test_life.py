"""The life of a socket: what it costs to make, connect and close one. The compiled core's."""

from __future__ import annotations

import os

import pytest

import transfer
from tests.sockets.conftest import KeepingContext, core_module
from tests.sockets.helpers import Thread, eventually

MANY = 20


@pytest.fixture
def context():
    with KeepingContext(core=core_module("native"), protocol="tcp") as made:
        yield made


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", list(transfer.SocketType))
def test_a_socket_that_only_exists_holds_no_descriptor(context, kind):
    before = descriptors()
    made = [context.socket(kind) for _ in range(MANY)]
    assert descriptors() == before
    for socket in made:
        socket.close()
    assert descriptors() == before


def test_a_sender_holds_its_connections_alone(context):
    with context.socket(transfer.PULL, rcvtimeo=10_000) as pull:
        pull.bind("tcp://127.0.0.1:0")
        senders = [context.socket(transfer.PUSH, linger=0) for _ in range(MANY + 1)]
        senders[0].connect(pull.last_endpoint)
        senders[0].send(b"the threads and descriptors of the context are there")
        assert pull.recv()
        before = descriptors()
        for socket in senders[1:]:
            socket.connect(pull.last_endpoint)
        for socket in senders[1:]:
            socket.wait_for_peers(1, 10)
            socket.send(b"x")
        for _ in range(MANY):
            pull.recv()
        assert descriptors() == before + 2 * MANY  # both ends of the connections


def test_a_receiver_that_sleeps_holds_two(context):
    """The epoll set, and the event that wakes its thread."""
    pull = context.socket(transfer.PULL)
    before = descriptors()
    thread = Thread(pull.recv)
    assert eventually(lambda: descriptors() == before + 2)
    pull.close()
    with pytest.raises(transfer.Closed):
        thread.finish()
    assert descriptors() == before
