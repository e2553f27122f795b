"""The HTTP server of metrics: a thread for each connection with a request, TLS if configured, and limits."""

from __future__ import annotations

import io
import logging
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from http.client import LineTooLong
from itertools import takewhile
from socketserver import ThreadingMixIn
from time import monotonic
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from transfer.http.tls import Https, bearer
from transfer.peer_faults import PeerFaults
from transfer.transports.arguments import wrong
from transfer.transports.connect.pending import PENDING
from transfer.transports.descriptors import is_reserved
from transfer.transports.errors import SecurityError
from transfer.transports.security.guard import check_listening, skips_token

#: seconds for the handshake together with the request's head, and for each part of the answer
_PATIENCE = 10.0
#: bytes of a request's line and headers together
MOST_HEAD = 16 << 10
#: connections that have begun a request and are not authenticated; and the same number of authenticated ones.
#: Beyond it the oldest of its kind is closed
_MOST = 64
#: in a request's environment: whether it has a required certificate or token
_KNOWN = "transfer.known"

_log = logging.getLogger("transfer")

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def check_registering(context: Any, registry: Any) -> None:
    """Checks the arguments of `register`. Raises ArgumentError."""
    if not hasattr(context, "tally"):
        raise wrong("context", context, "a transfer.Context")
    if not (registry is None or hasattr(registry, "register")):
        raise wrong("registry", registry, "a CollectorRegistry of prometheus_client, or None")


class _Handler(WSGIRequestHandler):
    """Handles a request. plain: the connection below TLS. certified: whether it has a certificate."""

    timeout = _PATIENCE
    #: for a request line without a version: the answer has a status line, too
    default_request_version = "HTTP/1.0"

    def __init__(
        self,
        request: Any,
        client_address: Any,
        server: MetricsServer,
        plain: socket.socket,
        *,
        certified: bool,
    ) -> None:
        self._scraped, self._plain, self._certified = server, plain, certified
        super().__init__(request, client_address, server)

    def handle(self) -> None:
        """See WSGIRequestHandler."""
        self.rfile = cast(Any, _Lines(self.rfile))
        self.requestline = self.request_version = self.command = ""
        try:
            super().handle()
        except LineTooLong:  # the request line: the base class answers long headers
            self.send_error(431)

    def get_environ(self) -> dict[str, Any]:
        """See WSGIRequestHandler."""
        self._scraped.mark_read(self._plain)
        environ = super().get_environ()
        known = self._certified or self._scraped.https.has_token(bearer(environ.get("HTTP_AUTHORIZATION")))
        if known:
            self._scraped.mark_known(self._plain)
        return {**environ, _KNOWN: known}

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def get_stderr(self) -> Any:
        """Returns a sink for wsgiref's tracebacks of lost peers; `_answering` logs those of the app."""
        return io.StringIO()


class _Lines:
    """Limits the bytes of a request's head. Raises LineTooLong."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = MOST_HEAD
        self.close = file.close

    def readline(self, most: int) -> bytes:
        """See `io.BufferedIOBase.readline`."""
        line: bytes = self._file.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens from its construction; `start` serves. https: certificates and tokens. port: the real one.

    Raises OSError, and SecurityError where requests could come without the required authentication.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, app: App, address: str, port: int, https: Https) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        where, number = str(found[4][0]), int(found[4][1])
        security = https.security
        check_listening(where, f"{address}:{port} for metrics", security, shown=True)
        if skips_token(security) and not security.tls:
            raise SecurityError(
                f"{address}:{port} for metrics would answer requests without a token: tokens need TLS",
                hint="configure certificates (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY), disable metrics, or "
                "allow requests of this machine without a token: TRANSFER_TOKENLESS=allow",
            )
        self.https = https
        self._lock = threading.Lock()
        self._unread: dict[socket.socket, float] = {}  # deadlines of requests' heads; the oldest first
        self._unknown: dict[socket.socket, None] = {}  # with a thread; the oldest first
        self._known: dict[socket.socket, None] = {}
        self._silent: dict[int, tuple[socket.socket, Any]] = {}  # no thread yet; by descriptor
        self._ready = select.epoll()  # for the silent ones and the listening socket
        super().__init__((where, number), cast(Any, _Handler))  # `finish_request` makes the handlers
        self._faults = PeerFaults(_log)
        app = _answering(app, self._faults)
        self.set_app(_guarded(app) if security.tls and security.authenticates else app)
        self.port: int = self.server_address[1]
        self.socket.setblocking(False)
        self._ready.register(self.socket, select.EPOLLIN)

    def start(self) -> threading.Thread:
        """Serves in a thread, until `shutdown`."""
        thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="transfer-metrics", daemon=True
        )
        thread.start()
        return thread

    def fileno(self) -> int:
        """Returns the descriptor that `serve_forever` waits for."""
        return self._ready.fileno()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Takes a new connection. Its thread starts at the first byte, so that silent ones are cheap."""
        if is_reserved(request.fileno()) and not PENDING.make_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._unread[request] = monotonic() + _PATIENCE
        self._silent[request.fileno()] = request, client_address
        self._ready.register(request, select.EPOLLIN)
        PENDING.add(request, partial(_shut_down, request))
        PENDING.trim()

    def service_actions(self) -> None:
        """See BaseServer. Called after each event, and each tenth of a second."""
        for fd, _ in self._ready.poll(0):
            if fd in self._silent:
                self._ready.unregister(fd)
                self._begin(*self._silent.pop(fd))
        now = monotonic()
        with self._lock:
            late = [request for request, _ in takewhile(lambda one: one[1] <= now, self._unread.items())]
            for request in late:
                del self._unread[request]
        for request in late:
            _shut_down(request)

    def _begin(self, request: socket.socket, client_address: Any) -> None:
        with suppress(OSError):
            if request.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self._join(self._unknown, request)
                try:
                    super().process_request(request, client_address)
                    return
                except RuntimeError:  # no thread can be started
                    self.handle_error(request, client_address)
        self._forget(request)
        self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handles the request in a thread."""
        request.settimeout(_PATIENCE)
        try:
            if not self.https.security.tls:
                _Handler(request, client_address, self, request, certified=False)
                return
            with self.https.context().wrap_socket(request.dup(), server_side=True) as secured:
                certified = bool(secured.getpeercert())
                if certified:
                    self.mark_known(request)
                _Handler(secured, client_address, self, request, certified=certified)
        except OSError:
            return  # the peer has gone, or has no valid certificate
        finally:
            self._forget(request)

    def mark_known(self, request: socket.socket) -> None:
        """Marks a connection as authenticated: it is not closed for unauthenticated ones. Idempotent."""
        with self._lock:
            self._unknown.pop(request, None)
        PENDING.remove(request)
        self._join(self._known, request)

    def mark_read(self, request: socket.socket) -> None:
        """Called when the head of a request is complete."""
        with self._lock:
            self._unread.pop(request, None)

    def _join(self, connections: dict[socket.socket, None], request: socket.socket) -> None:
        with self._lock:
            connections[request] = None
            oldest = next(iter(connections)) if len(connections) > _MOST else None
            if oldest is not None:
                del connections[oldest]
        if oldest is not None:
            _shut_down(oldest)

    def _forget(self, request: socket.socket) -> None:
        PENDING.remove(request)
        with self._lock:
            self._unread.pop(request, None)
            self._unknown.pop(request, None)
            self._known.pop(request, None)

    def server_close(self) -> None:
        """See BaseServer. It also closes connections without a request."""
        super().server_close()
        self._ready.close()
        while self._silent:
            request, _ = self._silent.popitem()[1]
            self._forget(request)
            self.shutdown_request(request)
        with self._lock:
            unread = list(self._unread)
        for request in unread:
            _shut_down(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See BaseServer, which prints a traceback."""
        self._faults.note("a scrape", sys.exc_info()[1] or OSError())


def _shut_down(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the peer has closed it already


def _answering(app: App, faults: PeerFaults) -> App:
    """Answers errors of the app. It drops an Accept header that the app cannot parse."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        try:
            try:
                return app(environ, start)
            except (TypeError, ValueError):
                return app({**environ, "HTTP_ACCEPT": ""}, start)
        except Exception as error:  # noqa: BLE001 - other requests are still answered
            faults.note("a scrape", error)
            start("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the metrics cannot be read: see the log of the program\n"]

    return answer


def _guarded(app: App) -> App:
    """Refuses requests that have neither a certificate nor the token."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ[_KNOWN]:
            return app(environ, start)
        start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"a certificate or the token is required\n"]

    return answer
