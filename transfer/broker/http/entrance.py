"""HTTP's connections up to their first request: TLS, deadlines, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from collections import Counter
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from transfer.broker.crowd import Crowd
from transfer.broker.engine.tls_words import word_of
from transfer.https import Https
from transports.errors import SecurityError

_log = logging.getLogger("transfer.broker")
#: seconds that a peer has to say that nothing follows
_FAREWELL = 1.0
#: what an error without words means: asyncio gives none to a peer that goes while TLS is agreed on
_GIVEN_UP = "the peer has closed it"


@dataclass(slots=True, eq=False)
class _Guest:
    """Somebody who has not asked for anything yet."""

    connection: socket.socket
    begun: bool = False  # the connection is no longer ours to close
    task: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None
    protocol: asyncio.BaseProtocol | None = None


class Entrance:
    """Gives connections to aiohttp. On the broker's loop.

    patience: seconds until the first request; those who have not asked are a `Crowd`. refused: how many did
    not come in, by word.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: web.AppRunner,
        https: Https,
        refused: Counter[str],
        *,
        patience: float,
    ) -> None:
        self.refused = refused
        self._loop = loop
        self._runner = runner
        self._https = https
        self._guests: Crowd[_Guest] = Crowd(
            loop, self._put_out, patience=patience, most=https.security.unfinished
        )
        self._by_protocol: dict[asyncio.BaseProtocol, _Guest] = {}
        self._transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()

    def middleware(self) -> Middleware:
        """Notices the first request of each connection."""

        @web.middleware
        async def noticing(request: web.Request, handler: Handler) -> web.StreamResponse:
            guest = self._by_protocol.get(request.protocol)
            if guest is not None:
                self._let_go(guest)
            return await handler(request)

        return noticing

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """A new connection, in non-blocking mode, of which nothing was read."""
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._https.security.connections:
            self.refused["crowded"] += 1
            connection.close()
            return
        guest = _Guest(connection)
        guest.task = self._loop.create_task(self._take(guest, peer))
        self._guests.add(guest)

    async def close(self) -> None:
        """When aiohttp has ended its connections: those that are left. Idempotent."""
        tasks = [guest.task for guest in self._guests if guest.task is not None and not guest.task.done()]
        for guest in self._guests:
            self._end(guest)
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self._transports):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _take(self, guest: _Guest, peer: str) -> None:
        assert self._runner.server is not None
        guest.begun = True
        secured = self._https.security.tls
        try:
            transport, protocol = await self._loop.connect_accepted_socket(
                self._runner.server,
                guest.connection,
                ssl=self._https.context() if secured else None,
                ssl_shutdown_timeout=_FAREWELL if secured else None,
            )
        except asyncio.CancelledError:
            guest.connection.close()
            raise
        except (OSError, SecurityError) as error:
            said = str(error) or _GIVEN_UP
            _log.info("%s was not let in by HTTP: %s", peer, said)
            guest.connection.close()
            if guest in self._guests:
                self._let_go(guest)
                self.refused[word_of(said)] += 1
            return
        guest.transport, guest.protocol = transport, protocol
        self._by_protocol[protocol] = guest
        self._transports.add(transport)

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
        self._guests.remove(guest)
        if guest.protocol is not None:
            self._by_protocol.pop(guest.protocol, None)
