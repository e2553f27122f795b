"""A connection with TLS on it, in the place of a plain socket: asyncio reads and writes it."""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
import threading

import pytest

from tests.broker.secure_peers import HERE, context_of
from transfer.broker.net.tls_socket import TlsSocket
from transfer.transports.core import native, pure
from transfer.transports.security.credentials import Credentials

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


@pytest.mark.parametrize("core", [native, pure])
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
    assert asyncio.run(answer(TlsSocket(ours, channel))) == hashlib.sha256(b"q" * SIZE).digest()
    thread.join(30)
    assert got == [bytes(range(256)) * (SIZE // 256) + b"!"]


class Writes(asyncio.Protocol):
    """Writes more than its peer takes, who then closes the connection."""

    def __init__(self, theirs):
        self.theirs = theirs
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.pause_reading()  # the end is found by a write
        transport.write(bytes(SIZE))
        self.theirs.close()

    def connection_lost(self, error):
        self.lost.set_result(error)


@pytest.mark.parametrize("core", [native, pure])
def test_a_write_that_fails_leaves_no_view_of_what_was_to_be_written(identities, core):
    """asyncio clears its buffer while it handles the error."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    channel = Credentials(identities.of_broker(), core).channel(ours.fileno())
    with context_of(identities, identities.client).wrap_socket(
        theirs, server_hostname=HERE, do_handshake_on_connect=False
    ) as secure:
        thread = threading.Thread(target=secure.do_handshake)
        thread.start()
        ours.settimeout(0)
        shake_hands(ours, channel)
        thread.join(30)

        async def scene():
            loop, problems = asyncio.get_running_loop(), []
            loop.set_exception_handler(lambda _, context: problems.append(context))
            secured = TlsSocket(ours, channel)
            _, protocol = await loop.connect_accepted_socket(lambda: Writes(secure), secured)
            return await asyncio.wait_for(protocol.lost, 30), problems

        error, problems = asyncio.run(scene())
        assert isinstance(error, OSError) and not problems, problems
