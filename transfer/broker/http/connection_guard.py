"""HTTP's connections until a request shows who asks: deadlines, and how many there may be."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from transfer.broker.http.request_head_limit import AT_ONCE, LimitedHandler
from transfer.broker.net.pending_connections import PendingConnections
from transfer.broker.net.tls_socket import channel_of


@dataclass(slots=True, eq=False)
class _Pending:
    """A peer that has not shown who it is, or has not sent a whole request yet."""

    connection: socket.socket
    certified: bool
    begun: bool = False  # the connection is no longer ours to close
    timer: asyncio.TimerHandle | None = None  # of one with a certificate, which is in no crowd
    task: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None
    protocol: asyncio.BaseProtocol | None = None


class _Watched(asyncio.Protocol):
    """aiohttp's protocol of a connection. ended: is called when the connection is lost."""

    def __init__(self, protocol: asyncio.Protocol, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._protocol = protocol
        self.data_received = protocol.data_received  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol.connection_made`."""
        transport.max_size = AT_ONCE  # type: ignore[attr-defined]
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol.connection_lost`."""
        self._ended()
        self._protocol.connection_lost(exc)


class ConnectionGuard:
    """Gives connections to aiohttp, after the handshake where there is TLS. On the broker's loop.

    patience: seconds that a connection has to show who asks; those who have not are in `crowd`, a
    `PendingConnections` of `unfinished` at most, also while they are answered. Who shows a certificate makes
    room for none. refused: how many did not come in, by word.
    shows: whether a request has shown who asks; None: it cannot, since nothing is asked for. settings: of
    aiohttp's connections.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: web.AppRunner,
        refused: Counter[str],
        shows: Callable[[web.Request], bool | None],
        *,
        patience: float,
        unfinished: int,
        settings: Mapping[str, Any],
    ) -> None:
        self.refused = refused
        self._patience = patience
        self._settings = settings
        self._loop = loop
        self._runner = runner
        self._shows = shows
        self.crowd: PendingConnections[_Pending] = PendingConnections(
            loop, self._put_out, patience=patience, most=unfinished
        )
        self._silent = 0  # connections that have sent nothing; aiohttp has them not
        self._by_protocol: dict[asyncio.BaseProtocol, _Pending] = {}
        self._certified: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    @property
    def connections(self) -> int:
        """How many are open."""
        served = len(self._runner.server.connections) if self._runner.server is not None else 0
        return served + self._silent

    def is_certified(self, request: web.Request) -> bool:
        """Whether its connection has shown a certificate, which is good then."""
        return request.transport in self._certified

    def middleware(self) -> Middleware:
        """Notices the first request of each connection that shows who asks, or, where nothing is asked for,
        that is whole: a body that is announced and never comes holds no connection."""

        @web.middleware
        async def noticing(request: web.Request, handler: Handler) -> web.StreamResponse:
            guest = self._by_protocol.get(request.protocol)
            if guest is not None:
                shown = self._shows(request)
                if shown:
                    self._let_go(guest)
                elif shown is None:
                    request.content.on_eof(partial(self._let_go, guest))
            return await handler(request)

        return noticing

    def accepted(self, connection: socket.socket, _peer: str) -> None:
        """A new connection, in non-blocking mode, of which nothing was read."""
        channel = channel_of(connection)
        guest = _Pending(connection, channel is not None and bool(channel.peer_certificate))
        if channel is None:
            self._silent += 1
            self._loop.add_reader(connection.fileno(), self._speaks, guest)
        else:  # its first bytes may be decrypted already
            self._begin(guest)
        if guest.certified:
            guest.timer = self._loop.call_later(self._patience, self._put_out, guest, "late")
        else:
            self.crowd.add(guest)

    async def close(self) -> None:
        """When aiohttp has ended its connections: those that are left. Idempotent."""
        tasks = [guest.task for guest in self.crowd if guest.task is not None and not guest.task.done()]
        for guest in self.crowd:
            self._end(guest)
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _speaks(self, guest: _Pending) -> None:
        """Only now aiohttp gets it: what it makes of a connection costs ten times an accept, and a storm of
        those that say nothing would keep others waiting."""
        self._unwatch(guest)
        try:
            gone = not guest.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        if gone:
            self._let_go(guest)
            guest.connection.close()
        else:
            self._begin(guest)

    def _unwatch(self, guest: _Pending) -> None:
        self._silent -= 1
        self._loop.remove_reader(guest.connection.fileno())

    def _begin(self, guest: _Pending) -> None:
        guest.task = self._loop.create_task(self._take(guest))

    async def _take(self, guest: _Pending) -> None:
        assert self._runner.server is not None
        guest.begun = True
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                partial(self._watched, guest), guest.connection
            )
        except asyncio.CancelledError:
            guest.connection.close()
            raise
        except OSError:  # it has gone already
            guest.connection.close()
            self._let_go(guest)
            return
        guest.transport = transport
        self._transports.add(transport)
        if guest.certified:
            self._certified.add(transport)

    def _watched(self, guest: _Pending) -> _Watched:
        assert self._runner.server is not None
        guest.protocol = protocol = LimitedHandler(self._runner.server, loop=self._loop, **self._settings)
        self._by_protocol[protocol] = guest
        return _Watched(protocol, partial(self._let_go, guest))

    def _put_out(self, guest: _Pending, word: str) -> None:
        if guest.transport is None or not guest.transport.is_closing():
            self.refused[word] += 1
        self._end(guest)

    def _end(self, guest: _Pending) -> None:
        self._let_go(guest)
        if isinstance(guest.transport, asyncio.WriteTransport):
            guest.transport.abort()
            return
        if guest.task is not None:
            guest.task.cancel()
        else:
            self._unwatch(guest)
        if not guest.begun:
            guest.connection.close()

    def _let_go(self, guest: _Pending) -> None:
        self.crowd.remove(guest)
        if guest.timer is not None:
            guest.timer.cancel()
        if guest.protocol is not None:
            self._by_protocol.pop(guest.protocol, None)
