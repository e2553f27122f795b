"""Two ends of a connection for checks and tests, and waits with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from transfer.transports import core, registry
from transfer.transports.address import Address, parse
from transfer.transports.base import Transport
from transfer.transports.connect.connection import Connected, ConnectOptions, Connector
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import MAX_DATA, SocketType
from transfer.transports.errors import TransferError
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.hello import Agreement
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.upgrade import Surroundings, Upgrade
from transfer.transports.reactor import Reactor
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security

if TYPE_CHECKING:
    from transfer.transports.core.contract import Frame, OutFrame

#: the longest wait of a check, in seconds
PATIENCE = 20.0
IMPATIENT = ConnectOptions(reconnect_first=0.01, reconnect_limit=0.05)


@dataclass(frozen=True, slots=True)
class Subject:
    """The transport to check. make: returns a new transport. endpoint: can be bound; may hold a wildcard.

    core: the module that drives descriptors, `transfer.transports.core` if None (or its native, or pure).
    upgrade: the name of the transport after the handshake, where that is `core.Stream` with a carrier; else
    nothing changes. security: certificates and tokens of both ends, for a transport that unauthenticated
    clients can reach.
    """

    make: Callable[[], Transport]
    endpoint: str
    core: Any = None
    upgrade: str = ""
    security: Security = field(default_factory=Security)

    @property
    def driver(self) -> Any:
        """The core."""
        return core if self.core is None else self.core

    def credentials(self, **changed: Any) -> Credentials:
        """The credentials of one end, which may differ from the subject's."""
        return Credentials(replace(self.security, **changed), self.driver)

    @property
    def address(self) -> Address:
        return parse(self.endpoint)


@dataclass
class Side:
    """The results of one side's callbacks."""

    connected: list[Connected] = field(default_factory=list)
    failed: list[TransferError] = field(default_factory=list)

    def refused(self, error: TransferError, _where: str = "") -> None:
        self.failed.append(error)


@dataclass(frozen=True, slots=True)
class Ends:
    """A connection with a stream at each end."""

    connecting: Any
    accepting: Any
    at_connecting: Connected
    at_accepting: Connected
    #: releases held memory that is written; a context does this when the flusher notifies it
    reap: Callable[[], object]


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; raises AssertionError with `what` if none comes in time."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)
    return value


def receive(stream: Any) -> list[Frame]:
    """The next message of a stream, without a socket."""
    message: list[Frame] = until(stream.receive, "a message")
    return message


@contextmanager
def meet(
    subject: Subject,
    *,
    kinds: tuple[SocketType, SocketType] = (SocketType.PAIR, SocketType.PAIR),
    **limits: int,
) -> Iterator[Ends]:
    """Connects, and closes everything at the end. limits: as `core.Stream` takes them, for both ends."""
    driver = subject.driver
    reactor, flusher, pool = Reactor(), driver.Flusher(), driver.Pool()
    streams: list[Any] = []
    one, other = Side(), Side()
    offer = Offer((subject.upgrade,), subject.upgrade, "require") if subject.upgrade else None
    ways = [_Way(Surroundings(driver, reactor, flusher, pool, kind, **_FOR_ALL | limits)) for kind in kinds]
    acceptor = serve(
        reactor, subject.make(), subject.address, hello=lambda: make_hello(kinds[1], offer=offer),
        on_connected=other.connected.append, on_failed=other.refused, upgrades=ways[1],
        credentials=subject.credentials(),
    )  # fmt: skip
    connector: Connector | None = None
    try:
        connector = reach(
            reactor, subject.make(), acceptor.address, hello=lambda: make_hello(kinds[0], offer=offer),
            on_connected=one.connected.append, on_failed=one.refused, options=IMPATIENT, upgrades=ways[0],
            credentials=subject.credentials(),
        )  # fmt: skip
        until(lambda: one.connected and other.connected, f"a connection to {acceptor.address}")
        for side, kind in ((one, kinds[0]), (other, kinds[1])):
            made = side.connected[0]
            if made.stream is None:
                stream = driver.Stream(made.fd, kind, flusher, pool, channel=made.channel, **limits)
                streams.append(stream)
                if made.carrier is not None:
                    stream.carrier = made.carrier
                    made.carrier.watch(side.failed.append)
                continue
            streams.append(made.stream)
            for name, value in limits.items():
                setattr(made.stream, name, value)
        yield Ends(streams[0], streams[1], one.connected[0], other.connected[0], flusher.reap)
    finally:
        if connector is not None:
            connector.close()
        acceptor.close()
        for stream in streams:
            stream.close()
        for way in ways:
            way.close()
        flusher.close()
        pool.close()
        reactor.close()


#: limits of a stream for an unlimited test
_FOR_ALL: dict[str, Any] = {
    "max_message": MAX_DATA,
    "send_high_water": 1000,
    "send_high_water_bytes": 64 << 20,
}


@dataclass(frozen=True, slots=True)
class _Way:
    """One side's part in upgrades, and their shared objects."""

    around: Surroundings

    def __call__(self, agreement: Agreement, connecting: bool) -> Upgrade:
        return registry.upgrade(agreement.choice.transport)(self.around, agreement, connecting=connecting)

    def close(self) -> None:
        for kept in (*self.around.own.values(), *self.around.shared.values()):
            if hasattr(kept, "close"):
                kept.close()


def plain(*parts: Any, flags: int = 0) -> list[OutFrame]:
    """A message of parts, to send."""
    return [(flags, 0, None, None, part) for part in parts]


def close_all(*sides: Side) -> None:
    """Closes the connections of both sides."""
    for side in sides:
        for connected in side.connected:
            if connected.stream is not None:
                connected.stream.close()
            else:
                os.close(connected.fd)
