"""A connection with TLS on it, in the place of a plain socket: asyncio reads and writes it."""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
import threading

import pytest

from tests.broker.secure_peers import HERE, context_of
from transfer.broker.secured import Secured
from transports import native, twin
from transports.security.credentials import Credentials

SIZE = 20 << 20


class Answering(asyncio.Protocol):
    """Takes so many bytes, answers with as many others, and says that nothing follows."""

    def __init__(self):
        self.digest, self.count = hashlib.sha256(), 0
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.digest.update(data)
        self.count += len(data)
        if self.count == SIZE:
            self.transport.write(bytes(range(256)) * (SIZE // 256))
            self.transport.write(b"!")
            self.transport.close()

    def connection_lost(self, error):
        self.lost.set_result(error)


async def answer(secured):
    _, protocol = await asyncio.get_running_loop().connect_accepted_socket(Answering, secured)
    assert await asyncio.wait_for(protocol.lost, 30) is None
    return protocol.digest.digest()


def shake_hands(connection, channel):
    """On the accepting side, as the broker's entry does it."""
    done = False
    while not done:
        assert select.select([connection], [], [], 30)[0]
        done = channel.handshake()
    channel.ahead()


@pytest.mark.parametrize("core", [native, twin])
def test_large_data_goes_both_ways_through_a_small_window(identities, core):
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    theirs.settimeout(30)
    got = []

    def peer():
        with context_of(identities, identities.client).wrap_socket(theirs, server_hostname=HERE) as secure:
            secure.sendall(b"q" * SIZE)
            received = bytearray()
            while data := secure.recv(3000):
                received += data
            got.append(bytes(received))

    thread = threading.Thread(target=peer)
    thread.start()
    channel = Credentials(identities.of_broker(), core).channel(ours.fileno())
    ours.settimeout(0)
    shake_hands(ours, channel)
    assert asyncio.run(answer(Secured(ours, channel))) == hashlib.sha256(b"q" * SIZE).digest()
    thread.join(30)
    assert got == [bytes(range(256)) * (SIZE // 256) + b"!"]
