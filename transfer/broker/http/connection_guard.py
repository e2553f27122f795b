"""Limits HTTP connections that no request has authenticated yet: their number and their time."""

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
    """A connection that is not authenticated, or has not sent a whole request yet."""

    connection: socket.socket
    certified: bool
    begun: bool = False  # aiohttp closes the connection from now on
    timer: asyncio.TimerHandle | None = (
        None  # only with a certificate: it is not in `ConnectionGuard.pending`
    )
    task: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None
    protocol: asyncio.BaseProtocol | None = None


class _ObservedProtocol(asyncio.Protocol):
    """Wraps aiohttp's protocol of a connection. on_lost: called when the connection is lost."""

    def __init__(self, protocol: asyncio.Protocol, on_lost: Callable[[], object]) -> None:
        self._on_lost = on_lost
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
        self._on_lost()
        self._protocol.connection_lost(exc)


class ConnectionGuard:
    """Gives connections to aiohttp, after the handshake where there is TLS. On the broker's loop.

    patience: seconds in which a connection has to authenticate. Until then it is in `pending`, also while its
    request is answered; a connection with a certificate is not, so no other connection evicts it.
    unfinished: connections in `pending` at most. refused: counts refused connections by reason.
    is_authenticated: whether a request is; None: the broker requires no authentication.
    settings: of aiohttp's connections.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: web.AppRunner,
        refused: Counter[str],
        is_authenticated: Callable[[web.Request], bool | None],
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
        self._is_authenticated = is_authenticated
        self.pending: PendingConnections[_Pending] = PendingConnections(
            loop, self._evict, patience=patience, most=unfinished
        )
        self._silent = 0  # connections that have sent nothing: aiohttp does not have them yet
        self._by_protocol: dict[asyncio.BaseProtocol, _Pending] = {}
        self._certified: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        served = len(self._runner.server.connections) if self._runner.server is not None else 0
        return served + self._silent

    def is_certified(self, request: web.Request) -> bool:
        """Whether the request's connection has a valid certificate."""
        return request.transport in self._certified

    def middleware(self) -> Middleware:
        """Returns the middleware that ends a connection's pending state at its first authenticated request.

        Without authentication a whole request ends it, so that a body that never arrives holds no connection.
        """

        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            pending = self._by_protocol.get(request.protocol)
            if pending is not None:
                known = self._is_authenticated(request)
                if known:
                    self._release(pending)
                elif known is None:
                    request.content.on_eof(partial(self._release, pending))
            return await handler(request)

        return observe

    def accepted(self, connection: socket.socket, _peer: str) -> None:
        """Takes a new connection, in non-blocking mode, of which nothing was read."""
        channel = channel_of(connection)
        pending = _Pending(connection, channel is not None and bool(channel.peer_certificate))
        if channel is None:
            self._silent += 1
            self._loop.add_reader(connection.fileno(), self._on_readable, pending)
        else:  # TLS may have decrypted its first bytes already
            self._begin(pending)
        if pending.certified:
            pending.timer = self._loop.call_later(self._patience, self._evict, pending, "late")
        else:
            self.pending.add(pending)

    async def close(self) -> None:
        """Closes the remaining connections, after aiohttp has closed its own. Idempotent."""
        tasks = [
            pending.task for pending in self.pending if pending.task is not None and not pending.task.done()
        ]
        for pending in self.pending:
            self._end(pending)
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _on_readable(self, pending: _Pending) -> None:
        """Gives the connection to aiohttp at its first byte.

        aiohttp's setup costs ten times an accept: a storm of silent connections would delay the others.
        """
        self._unwatch(pending)
        try:
            gone = not pending.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            gone = True
        if gone:
            self._release(pending)
            pending.connection.close()
        else:
            self._begin(pending)

    def _unwatch(self, pending: _Pending) -> None:
        self._silent -= 1
        self._loop.remove_reader(pending.connection.fileno())

    def _begin(self, pending: _Pending) -> None:
        pending.task = self._loop.create_task(self._serve(pending))

    async def _serve(self, pending: _Pending) -> None:
        assert self._runner.server is not None
        pending.begun = True
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                partial(self._make_protocol, pending), pending.connection
            )
        except asyncio.CancelledError:
            pending.connection.close()
            raise
        except OSError:  # the peer has closed it already
            pending.connection.close()
            self._release(pending)
            return
        pending.transport = transport
        self._transports.add(transport)
        if pending.certified:
            self._certified.add(transport)

    def _make_protocol(self, pending: _Pending) -> _ObservedProtocol:
        assert self._runner.server is not None
        pending.protocol = protocol = LimitedHandler(self._runner.server, loop=self._loop, **self._settings)
        self._by_protocol[protocol] = pending
        return _ObservedProtocol(protocol, partial(self._release, pending))

    def _evict(self, pending: _Pending, reason: str) -> None:
        if pending.transport is None or not pending.transport.is_closing():
            self.refused[reason] += 1
        self._end(pending)

    def _end(self, pending: _Pending) -> None:
        self._release(pending)
        if isinstance(pending.transport, asyncio.WriteTransport):
            pending.transport.abort()
            return
        if pending.task is not None:
            pending.task.cancel()
        else:
            self._unwatch(pending)
        if not pending.begun:
            pending.connection.close()

    def _release(self, pending: _Pending) -> None:
        self.pending.remove(pending)
        if pending.timer is not None:
            pending.timer.cancel()
        if pending.protocol is not None:
            self._by_protocol.pop(pending.protocol, None)
