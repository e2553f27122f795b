"""The broker's HTTP server, on the broker's own loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from transfer.broker.delivery.dead_letter_replay import DeadLetterReplay
from transfer.broker.delivery.topic_admin import TopicAdmin
from transfer.broker.http.app import application
from transfer.broker.http.authentication import Authentication
from transfer.broker.http.connection_guard import ConnectionGuard
from transfer.broker.http.console import add_console
from transfer.broker.http.health import live_problems, ready_problems
from transfer.broker.http.request_head_limit import MOST_HEADERS
from transfer.broker.http.request_log import RequestLog
from transfer.broker.http.status_routes import add_status_routes
from transfer.broker.net.listener import LoopListener
from transfer.broker.storage.dead_letter_operations import Operator
from transfer.http.tls import PROTOCOL, Https
from transfer.transports.errors import AddressError, AddressInUse, SecurityError
from transfer.transports.security.guard import check_listening, is_loopback, skips_token
from transfer.transports.security.settings import check_token

if TYPE_CHECKING:
    from transfer.broker.server import Broker

_log = logging.getLogger("transfer.broker")
#: seconds after which an idle connection is closed; aiohttp's default is an hour
KEEP_ALIVE = 75.0
#: seconds in which the rest of a refused body is read, so that its sender reads the answer
_LINGERING = 1.0
#: seconds that running answers have when the broker ends
_SHUTDOWN_TIMEOUT = 1.0


class HttpServer:
    """Serves health, metrics, the console and operators' calls.

    Made and closed in the broker's thread while its loop does not run. port: where it really listens.
    Raises AddressInUse, AddressError, SecurityError, and what the stores raise.
    """

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._loop = broker.loop
        security = broker.context.credentials.security
        https = Https(security)
        replay = DeadLetterReplay(broker.loop, broker.hub, broker.letters.payloads)
        operator = Operator(broker.letters, broker.audit, replay)
        token = broker.settings.token
        authentication = Authentication(
            token,
            https,
            lambda request: self._guard.is_certified(request),  # noqa: PLW0108 the guard is made below
            local=not skips_token(security),
        )
        app = application(
            operator,
            token=token,
            authentication=authentication,
            live=partial(live_problems, broker),
            ready=partial(ready_problems, broker),
            topics=TopicAdmin(broker.loop, broker.hub, broker.letters, broker.audit),
        )
        add_status_routes(app, broker)
        add_console(app)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=_SHUTDOWN_TIMEOUT)
        self._guard = ConnectionGuard(
            self._loop,
            self._runner,
            broker.listeners.refusals("http"),
            authentication.is_authenticated,
            patience=broker.settings.handshake_timeout,
            unfinished=security.max_unauthenticated,
            settings={
                "access_log": None,
                "keepalive_timeout": KEEP_ALIVE,
                "lingering_time": _LINGERING,
                "max_headers": MOST_HEADERS,
                "logger": RequestLog(_log),
            },
        )
        certificates = "optional" if security.asks_certificates else "none"
        guard = self._guard
        accepted = broker.listeners.acceptor(
            "http",
            guard.accepted,
            lambda: guard.connections,
            PROTOCOL,
            clients=certificates,
            pending=guard.pending,
        )
        app.middlewares.insert(0, self._guard.middleware())
        self._listener: LoopListener | None = None
        try:
            self._loop.run_until_complete(self._runner.setup())
            allowed = partial(check_listening, security=security, shown=True)
            if token:
                _check_operators(token, host)
            self._listener = LoopListener(self._loop, host, port, accepted, allowed=allowed)
        except BaseException as error:
            self.close()
            if isinstance(error, AddressInUse | AddressError):
                raise _for_http(error) from error
            raise
        self.port: int = self._listener.port

    def close(self) -> None:
        """Closes the listener and all connections. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.run_until_complete(self._guard.close())
        self._loop.run_until_complete(_end_requests())


def _check_operators(token: str, host: str) -> None:
    """Raises SecurityError for a token that can be guessed; on loopback it only logs a warning."""
    try:
        check_token(token, "http.token")
    except SecurityError as error:
        if not is_loopback(host):
            raise
        text = "%s, by any user of this machine; the broker refuses such a token on other addresses (%s)"
        _log.warning(text, str(error).partition("\n")[0], error.hint)


async def _end_requests() -> None:
    """Ends requests whose peers closed in the middle of a body: aiohttp forgets their tasks.

    No other part of the broker has tasks on this loop.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _for_http(error: AddressInUse | AddressError) -> AddressInUse | AddressError:
    where, _, why = str(error).partition(chr(10))[0].partition(": ")
    place = f"{where} for HTTP: {why}"
    return type(error)(place, hint=error.hint)
