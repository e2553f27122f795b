"""Two ends of a connection for checks and tests, and waiting with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transports import core
from transports.address import Address, parse
from transports.base import Transport
from transports.connection import Connected, ConnectOptions, Connector, reach, serve
from transports.errors import TransferError
from transports.identity import make_hello
from transports.reactor import Reactor
from transports.wire import SocketType

if TYPE_CHECKING:
    from transports.core_contract import Frame, OutFrame

#: no check waits longer for anything, in seconds
PATIENCE = 20.0
IMPATIENT = ConnectOptions(reconnect_first=0.01, reconnect_limit=0.05)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked. make: gives a new transport. endpoint: can be bound; may hold a wildcard.

    core: the module that drives descriptors, `transports.core` if None (or native, or twin).
    """

    make: Callable[[], Transport]
    endpoint: str
    core: Any = None

    @property
    def address(self) -> Address:
        return parse(self.endpoint)


@dataclass
class Side:
    """What the callbacks of one side told."""

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
    #: releases held memory that is written; a context does this when the flusher says so
    reap: Callable[[], object]


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; an AssertionError that names `what` if none comes in time."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)
    return value


def receive(stream: Any) -> list[Frame]:
    """The next message of a stream that no socket reads."""
    message: list[Frame] = until(stream.receive, "a message")
    return message


@contextmanager
def meet(
    subject: Subject,
    *,
    kinds: tuple[SocketType, SocketType] = (SocketType.PAIR, SocketType.PAIR),
    **limits: int,
) -> Iterator[Ends]:
    """Connects, and closes all in the end. limits: as `core.Stream` takes them, for both ends."""
    driver = core if subject.core is None else subject.core
    reactor, flusher, pool = Reactor(), driver.Flusher(), driver.Pool()
    streams: list[Any] = []
    one, other = Side(), Side()
    acceptor = serve(
        reactor, subject.make(), subject.address, hello=lambda: make_hello(kinds[1]),
        on_connected=other.connected.append, on_failed=other.refused,
    )  # fmt: skip
    connector: Connector | None = None
    try:
        connector = reach(
            reactor, subject.make(), acceptor.address, hello=lambda: make_hello(kinds[0]),
            on_connected=one.connected.append, on_failed=one.refused, options=IMPATIENT,
        )  # fmt: skip
        until(lambda: one.connected and other.connected, f"a connection to {acceptor.address}")
        for side, kind in ((one, kinds[0]), (other, kinds[1])):
            made = side.connected[0]
            if made.stream is None:
                streams.append(driver.Stream(made.fd, kind, flusher, pool, **limits))
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
        flusher.close()
        pool.close()
        reactor.close()


def plain(*parts: Any, flags: int = 0) -> list[OutFrame]:
    """A message of parts, to send."""
    return [(flags, 0, None, None, part) for part in parts]


def close_all(*sides: Side) -> None:
    """Closes what the sides were given."""
    for side in sides:
        for connected in side.connected:
            if connected.stream is not None:
                connected.stream.close()
            else:
                os.close(connected.fd)
