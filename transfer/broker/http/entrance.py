"""HTTP's connections up to their first request: deadlines, and how many there may be."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import Counter
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from transfer.broker.crowd import Crowd
from transfer.broker.secured import channel_of


@dataclass(slots=True, eq=False)
class _Guest:
    """Somebody who has not asked for anything yet."""

    connection: socket.socket
    certified: bool
    begun: bool = False  # the connection is no longer ours to close
    task: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None
    protocol: asyncio.BaseProtocol | None = None


class Entrance:
    """Gives connections to aiohttp, after the handshake where there is TLS. On the broker's loop.

    patience: seconds until the first request; those who have not asked are a `Crowd`, of `unfinished` at
    most (`crowd`). refused: how many did not come in, by word.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: web.AppRunner,
        refused: Counter[str],
        *,
        patience: float,
        unfinished: int,
    ) -> None:
        self.refused = refused
        self._loop = loop
        self._runner = runner
        self.crowd: Crowd[_Guest] = Crowd(loop, self._put_out, patience=patience, most=unfinished)
        self._by_protocol: dict[asyncio.BaseProtocol, _Guest] = {}
        self._certified: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._runner.server.connections) if self._runner.server is not None else 0

    def is_certified(self, request: web.Request) -> bool:
        """Whether its connection has shown a certificate, which is good then."""
        return request.transport in self._certified

    def middleware(self) -> Middleware:
        """Notices the first request of each connection."""

        @web.middleware
        async def noticing(request: web.Request, handler: Handler) -> web.StreamResponse:
            guest = self._by_protocol.get(request.protocol)
            if guest is not None:
                self._let_go(guest)
            return await handler(request)

        return noticing

    def accepted(self, connection: socket.socket, _peer: str) -> None:
        """A new connection, in non-blocking mode, of which nothing was read."""
        channel = channel_of(connection)
        guest = _Guest(connection, channel is not None and bool(channel.peer_certificate))
        guest.task = self._loop.create_task(self._take(guest))
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

    async def _take(self, guest: _Guest) -> None:
        assert self._runner.server is not None
        guest.begun = True
        try:
            transport, protocol = await self._loop.connect_accepted_socket(
                self._runner.server, guest.connection
            )
        except asyncio.CancelledError:
            guest.connection.close()
            raise
        except OSError:  # it has gone already
            guest.connection.close()
            self._let_go(guest)
            return
        guest.transport, guest.protocol = transport, protocol
        self._by_protocol[protocol] = guest
        self._transports.add(transport)
        if guest.certified:
            self._certified.add(transport)

    def _put_out(self, guest: _Guest, word: str) -> None:
        if guest.transport is None or not guest.transport.is_closing():
            self.refused[word] += 1
        self._end(guest)

    def _end(self, guest: _Guest) -> None:
        self._let_go(guest)
        if isinstance(guest.transport, asyncio.WriteTransport):
            guest.transport.abort()
        elif guest.task is not None:
            guest.task.cancel()
            if not guest.begun:
                guest.connection.close()

    def _let_go(self, guest: _Guest) -> None:
        self.crowd.remove(guest)
        if guest.protocol is not None:
            self._by_protocol.pop(guest.protocol, None)
