"""Two streams that are connected, over the null provider or a device."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from transfer.transports import core
from transfer.transports.core.wire import SocketType
from transfer.transports.handshake.hello import Agreement, Choice, Hello
from transfer.transports.handshake.upgrade import Dialogue, Surroundings
from transfer.transports.rdma import device_selection
from transfer.transports.rdma.domain import Domains
from transfer.transports.rdma.driver import Driver, load as load_driver
from transfer.transports.rdma.upgrade import VerbsUpgrade
from transfer.transports.reactor import Reactor
from transfer.transports.testing.ends import Ends


def devices() -> list[str]:
    """RDMA devices of this machine."""
    return [device.name for device in device_selection.look()]


class World:
    """One process with a reactor; contexts and sockets of it are made here and closed in order."""

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = driver
        self.reactor, self.flusher, self.pool = Reactor(), core.Flusher(), core.Pool()
        self.streams: list[Any] = []
        #: streams whose device is gone, and the error for their owner
        self.lost: dict[Any, BaseException] = {}
        self.contexts: list[dict[str, Any]] = []

    def context(self) -> dict[str, Any]:
        """What the sockets of one context share."""
        load = load_driver if self.driver is None else (lambda: self.driver)
        shared: dict[str, Any] = {"rdma.domains": Domains(core.copy_into, load)}
        self.contexts.append(shared)
        return shared

    def socket(self, kind: SocketType = SocketType.PAIR, shared: Any = None, **limits: Any) -> Surroundings:
        return Surroundings(
            core, self.reactor, self.flusher, self.pool, kind,
            max_message=limits.get("max_message", 1 << 34),
            send_high_water=limits.get("send_high_water", 1000),
            send_high_water_bytes=limits.get("send_high_water_bytes", 64 << 20),
            credits=limits.get("credits", False),
            checksum=limits.get("checksum", False),
            shared=self.context() if shared is None else shared,
        )  # fmt: skip

    def connect(self, one: Surroundings, other: Surroundings) -> tuple[Any, Any]:
        """Streams of two sockets, by the dialogue that connections have."""
        near, far = tcp_pair()
        upgrades = [
            VerbsUpgrade(around, agreement(peer), connecting=connecting)
            for around, peer, connecting in ((one, other, True), (other, one, False))
        ]
        try:
            talk(upgrades[0], upgrades[1])
        except BaseException:
            for upgrade in upgrades:
                upgrade.close()
            near.close()
            far.close()
            raise
        return self.adopt(upgrades[0], near), self.adopt(upgrades[1], far)

    def adopt(self, upgrade: VerbsUpgrade, connection: socket.socket) -> Any:
        """The stream over an upgraded connection."""
        around = upgrade.around
        made = upgrade.made(connection.detach())
        stream = core.Stream(
            made.fd, around.socket_type, self.flusher, self.pool, channel=made.channel,
            max_message=around.max_message, send_high_water=around.send_high_water,
            send_high_water_bytes=around.send_high_water_bytes,
            credits=around.credits, checksum=around.checksum,
        )  # fmt: skip
        stream.carrier = made.carrier
        made.carrier.watch(partial(_lose, self.lost, weakref.ref(stream)))
        self.streams.append(stream)
        return stream

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        for shared in self.contexts:
            for kept in shared.values():
                kept.close()
        self.reactor.close()
        self.flusher.close()
        self.pool.close()


def _lose(lost: dict[Any, BaseException], stream: weakref.ref[Any], error: BaseException) -> None:
    lost[stream()] = error


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setblocking(False)
    return near, far


def agreement(peer: Surroundings) -> Agreement:
    remote = Hello(peer.socket_type, host_id=f"host-{id(peer)}")
    return Agreement(1, frozenset(), remote, Choice("rdma", "a test"))


def talk(connecting: VerbsUpgrade, accepting: VerbsUpgrade) -> None:
    """The dialogue, without a network. Raises Declined as either side said."""
    there, here = Dialogue(accepting, SocketType.PAIR), Dialogue(connecting, SocketType.PAIR)
    there.begin()
    while there.output or here.output:
        for source, target in ((there, here), (here, there)):
            while source.output:
                part = bytes(source.output[: target.wants])
                del source.output[: len(part)]
                target.feed(part)
    for end in (here, there):
        if isinstance(end.outcome, BaseException):
            raise end.outcome
        assert end.outcome is True


@contextmanager
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def meet(made: World, *, kinds: Any = (SocketType.PAIR, SocketType.PAIR), **limits: Any) -> Iterator[Ends]:
    """As `transfer.transports.testing.ends.meet`, over rdma."""
    one, other = (made.socket(kind, **limits) for kind in kinds)
    near, far = made.connect(one, other)
    for stream in (near, far):
        for name, value in limits.items():
            setattr(stream, name, value)
    try:
        yield Ends(near, far, None, None, made.flusher.reap)  # type: ignore[arg-type]
    finally:
        for stream in (near, far):
            stream.close()
