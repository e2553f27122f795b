"""Two ends of a UCX connection in one process, as two sockets would have them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from transfer.transports import core
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, ProtocolError
from transfer.transports.handshake.upgrade import Surroundings
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.testing.ends import Ends
from transfer.transports.ucx.upgrade import UcxUpgrade


class Kit:
    """What two contexts would bring."""

    def __init__(self, kinds: tuple[SocketType, SocketType], **limits: Any) -> None:
        self.reactor, self.flusher, self.pool = Reactor(), core.Flusher(), core.Pool()
        self.around = [
            Surroundings(
                core=core,
                reactor=self.reactor,
                flusher=self.flusher,
                pool=self.pool,
                socket_type=kind,
                max_message=limits.get("max_message", 1 << 34),
                send_high_water=limits.get("send_high_water", 1000),
                send_high_water_bytes=limits.get("send_high_water_bytes", 64 << 20),
                credits=limits.get("credits", False),
                checksum=limits.get("checksum", False),
            )
            for kind in kinds
        ]
        self.upgrades: list[UcxUpgrade] = []
        self.streams: list[Any] = []
        self.control: list[tuple[Any, list[Any]]] = []
        self.watched: list[int] = []

    def connect(self) -> tuple[Any, Any]:
        """One connection more, of the same two sockets."""
        one, other = upgrades = [
            UcxUpgrade(around, None, connecting=connecting)  # type: ignore[arg-type]
            for around, connecting in zip(self.around, (True, False), strict=True)
        ]
        self.upgrades += upgrades
        other.finish(one.accept(other.offer()))
        for upgrade, end in zip(upgrades, socket.socketpair(), strict=True):
            end.setblocking(False)
            stream = upgrade.made(end.detach()).stream
            self.streams.append(stream)
            heard: list[Any] = []
            self.control.append((stream, heard))
            self.reactor.register(stream.fd, READABLE, partial(self._read_control, stream, heard))
            self.watched.append(stream.fd)
        return self.streams[-2], self.streams[-1]

    def _read_control(self, stream: Any, heard: list[Any], _events: int) -> None:
        try:
            heard += stream.control_ready()
        except (Broken, ProtocolError):
            self.reactor.unregister(stream.fd)

    def close(self) -> None:
        for stream in self.streams:
            if stream.fd in self.watched:
                self.reactor.unregister(stream.fd)
            stream.close()
        for upgrade in self.upgrades:
            upgrade.close()
        for around in self.around:
            for port in around.own.values():
                port.close()
                assert port.closed
        self.reactor.close()
        self.flusher.close()
        self.pool.close()


@contextmanager
def kit(
    kinds: tuple[SocketType, SocketType] = (SocketType.PAIR, SocketType.PAIR), **limits: Any
) -> Iterator[Kit]:
    made = Kit(kinds, **limits)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def meet(_subject: Any, *, kinds: Any = (SocketType.PAIR, SocketType.PAIR), **limits: Any) -> Iterator[Ends]:
    """In the place of `transfer.transports.testing.ends.meet`."""
    with kit(kinds, **limits) as made:
        one, other = made.connect()
        yield Ends(one, other, None, None, made.flusher.reap)  # type: ignore[arg-type]
