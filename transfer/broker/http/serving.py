"""The broker's HTTP server, on the broker's own loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from transfer.broker.http.app import application
from transfer.broker.http.console import add_console
from transfer.broker.http.health import live_problems, ready_problems
from transfer.broker.http.looking import add_looks
from transfer.broker.replaying import Replaying
from transfer.broker.state.operations import Operator
from transports.errors import AddressError, AddressInUse

if TYPE_CHECKING:
    from transfer.broker.server import Broker

_log = logging.getLogger("transfer.broker")

#: seconds that answers on their way have when the broker ends
_LAST_WORDS = 1.0


class HttpServer:
    """Serves health, metrics, the console and operators. Made and closed in the broker's thread while its
    loop does not run. port: where it really listens. Raises AddressInUse, AddressError, and what the stores
    raise."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._loop = broker.loop
        self._taking: set[asyncio.Task[None]] = set()
        replaying = Replaying(broker.loop, broker.hub, broker.letters.payloads)
        operator = Operator(broker.letters, broker.audit, replaying)
        token = broker.settings.token
        app = application(
            operator,
            token=token,
            live=partial(live_problems, broker),
            ready=partial(ready_problems, broker),
        )
        add_looks(app, broker, token)
        add_console(app)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_LAST_WORDS)
        try:
            self._loop.run_until_complete(self._listen(host, port))
        except OSError as error:
            self.close()
            raise _told(error, host, port) from error
        self.port: int = self._runner.addresses[0][1]

    async def _listen(self, host: str, port: int) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """Takes a connection that came elsewhere, in non-blocking mode and unread. On the loop."""
        task = self._loop.create_task(self._take(connection, peer))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, connection: socket.socket, peer: str) -> None:
        assert self._runner.server is not None
        try:
            await self._loop.connect_accepted_socket(self._runner.server, connection)
        except OSError as error:
            _log.info("%s could not be let in: %s", peer, error)
            connection.close()

    def close(self) -> None:
        """Idempotent."""
        self._loop.run_until_complete(self._runner.cleanup())


def _told(error: OSError, host: str, port: int) -> AddressInUse | AddressError:
    known = error.errno is not None and error.errno in errno.errorcode
    why = os.strerror(error.errno or 0) if known else str(error)  # without asyncio's words
    place = f"{host}:{port} for HTTP: {why}"
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        return AddressInUse(place, hint="end who has it, or name another port, or off, with --http")
    return AddressError(place, hint="a host of this machine, and a port")
