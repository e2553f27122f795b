"""Plain blocking sockets in Python with a fixed receive buffer: the kernel's limit, without messages."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Any, cast

from bench.peers.base import Channel, Peer, Role, host_of
from bench.work import PATIENCE, Work

BOUND = (Role.PULL, Role.REP, Role.PAIR_BOUND)


class Raw(Peer):
    name = "raw"

    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        if role in BOUND:
            return self._bound(work)
        if role is Role.PUB:
            return self._publisher(work)
        host, port = address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
        return self._channel(connection, work, address)

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        """Receives the bytes of the array into one buffer again and again."""
        return self.open(role, work, address)

    def _bound(self, work: Work) -> Channel:
        listener = socket.create_server((host_of(work), 0))
        listener.settimeout(PATIENCE)
        host, port = listener.getsockname()[:2]
        channel = Channel(address=f"{host}:{port}")

        def ready(_: int) -> None:
            connection, _address = listener.accept()
            listener.close()
            open_end = self._channel(connection, work, channel.address)
            channel.send, channel.recv, channel.close = open_end.send, open_end.recv, open_end.close

        channel.ready = ready
        return channel

    def _publisher(self, work: Work) -> Channel:
        """`send` writes to all connections, to each what it takes; it returns when all have the message."""
        listener = socket.create_server((host_of(work), 0))
        listener.settimeout(PATIENCE)
        host, port = listener.getsockname()[:2]
        channel = Channel(address=f"{host}:{port}")
        connections = []

        def ready(count: int) -> None:
            for _ in range(count):
                connection, _address = listener.accept()
                connection.setblocking(False)
                connections.append(connection)
            listener.close()

        def close() -> None:
            for connection in connections:
                connection.close()

        channel.ready, channel.close = ready, close
        channel.send = lambda data: _send_to_all(connections, memoryview(data))
        return channel

    def _channel(self, connection: socket.socket, work: Work, address: str) -> Channel:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # a timeout would make the descriptor non-blocking and add a poll to every call
        connection.settimeout(None)
        return Channel(
            address=address,
            send=connection.sendall,
            recv=_receiver(connection, work.size),
            close=connection.close,
            socket=connection,
        )


def _receiver(connection: socket.socket, size: int) -> Callable[[], Any]:
    """Fills one buffer again and again; returns it when it is full."""
    buffer = memoryview(bytearray(size))
    recv_into = connection.recv_into

    def recv() -> memoryview:
        got = recv_into(buffer)
        while got < size:
            more = recv_into(buffer[got:])
            if not more:
                raise EOFError("the other side closed")
            got += more
        return buffer

    return recv


def _send_to_all(connections: list[socket.socket], data: memoryview) -> None:
    with selectors.PollSelector() as writable:
        for connection in connections:
            writable.register(connection, selectors.EVENT_WRITE, data)
        while writable.get_map():
            for key, _ in writable.select(PATIENCE):
                connection = cast(socket.socket, key.fileobj)
                left = key.data[connection.send(key.data) :]
                if left:
                    writable.modify(connection, selectors.EVENT_WRITE, left)
                else:
                    writable.unregister(connection)
