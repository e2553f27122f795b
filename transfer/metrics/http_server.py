"""The HTTP server of metrics: a thread for each connection that asks, TLS if there is TLS, and limits."""

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

#: seconds for the handshake and the head of the request together, and for each part of the answer
_PATIENCE = 10.0
#: bytes of a request's line and headers together
MOST_HEAD = 16 << 10
#: connections that have begun to ask and have not shown who they are; and those that have. The oldest is put
#: out for the newest of its kind
_MOST = 64
#: in the environment of a request: it has shown the certificate or the token that is asked for
_KNOWN = "transfer.known"

_log = logging.getLogger("transfer")

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def check_registering(context: Any, registry: Any) -> None:
    """Raises ArgumentError."""
    if not hasattr(context, "tally"):
        raise wrong("context", context, "a transfer.Context")
    if not (registry is None or hasattr(registry, "register")):
        raise wrong("registry", registry, "a CollectorRegistry of prometheus_client, or None")


class _Handler(WSGIRequestHandler):
    """plain: the connection, below TLS. certified: it has shown a certificate."""

    timeout = _PATIENCE
    #: of a request line that names none: what is answered has a status line all the same
    default_request_version = "HTTP/1.0"

    def __init__(
        self, request: Any, client_address: Any, server: Scraped, plain: socket.socket, *, certified: bool
    ) -> None:
        self._scraped, self._plain, self._certified = server, plain, certified
        super().__init__(request, client_address, server)

    def handle(self) -> None:
        """See WSGIRequestHandler."""
        self.rfile = cast(Any, _Lines(self.rfile))
        self.requestline = self.request_version = self.command = ""
        try:
            super().handle()
        except LineTooLong:  # the request's; of a header it is answered there
            self.send_error(431)

    def get_environ(self) -> dict[str, Any]:
        """See WSGIRequestHandler."""
        self._scraped.has_asked(self._plain)
        environ = super().get_environ()
        known = self._certified or self._scraped.https.has_token(bearer(environ.get("HTTP_AUTHORIZATION")))
        if known:
            self._scraped.knows(self._plain)
        return {**environ, _KNOWN: known}

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read it."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes tracebacks: of peers who went, since `_answering` logs those of the app."""
        return io.StringIO()


class _Lines:
    """What a peer sends, up to the end of its request's head. Raises LineTooLong."""

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


class Scraped(ThreadingMixIn, WSGIServer):
    """Listens at once; `start` serves. https: what is shown, and asked for. port: where it really listens.

    Raises OSError, and SecurityError where strangers could come, or who has no token where there is one.
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
                f"{address}:{port} for metrics would answer who has no token: without TLS it takes none",
                hint="give it certificates (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY), leave it out, or let it "
                "answer this machine without: TRANSFER_TOKENLESS=allow",
            )
        self.https = https
        self._lock = threading.Lock()
        self._unread: dict[socket.socket, float] = {}  # until when the head has to be whole; the oldest first
        self._unknown: dict[socket.socket, None] = {}  # with a thread; the oldest first
        self._known: dict[socket.socket, None] = {}
        self._silent: dict[int, tuple[socket.socket, Any]] = {}  # no thread yet; by descriptor
        self._ready = select.epoll()  # of those, and of the listening socket
        super().__init__((where, number), cast(Any, _Handler))  # `finish_request` makes it
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
        """What `serve_forever` waits for."""
        return self._ready.fileno()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A new connection. It gets a thread when it says something: a storm of silent ones is cheap."""
        if is_reserved(request.fileno()) and not PENDING.make_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._unread[request] = monotonic() + _PATIENCE
        self._silent[request.fileno()] = request, client_address
        self._ready.register(request, select.EPOLLIN)
        PENDING.add(request, partial(_put_out, request))
        PENDING.trim()

    def service_actions(self) -> None:
        """See BaseServer: whenever something was ready, and each tenth of a second."""
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
            _put_out(request)

    def _begin(self, request: socket.socket, client_address: Any) -> None:
        with suppress(OSError):
            if request.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self._join(self._unknown, request)
                try:
                    super().process_request(request, client_address)
                    return
                except RuntimeError:  # the system gives no thread
                    self.handle_error(request, client_address)
        self._forget(request)
        self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        request.settimeout(_PATIENCE)
        try:
            if not self.https.security.tls:
                _Handler(request, client_address, self, request, certified=False)
                return
            with self.https.context().wrap_socket(request.dup(), server_side=True) as secured:
                certified = bool(secured.getpeercert())
                if certified:
                    self.knows(request)
                _Handler(secured, client_address, self, request, certified=certified)
        except OSError:
            return  # it went, or had no certificate
        finally:
            self._forget(request)

    def knows(self, request: socket.socket) -> None:
        """It has shown who it is, and makes no room for those that have not. Idempotent."""
        with self._lock:
            self._unknown.pop(request, None)
        PENDING.remove(request)
        self._join(self._known, request)

    def has_asked(self, request: socket.socket) -> None:
        """The head of its request is whole."""
        with self._lock:
            self._unread.pop(request, None)

    def _join(self, crowd: dict[socket.socket, None], request: socket.socket) -> None:
        with self._lock:
            crowd[request] = None
            oldest = next(iter(crowd)) if len(crowd) > _MOST else None
            if oldest is not None:
                del crowd[oldest]
        if oldest is not None:
            _put_out(oldest)

    def _forget(self, request: socket.socket) -> None:
        PENDING.remove(request)
        with self._lock:
            self._unread.pop(request, None)
            self._unknown.pop(request, None)
            self._known.pop(request, None)

    def server_close(self) -> None:
        """Ends those who have not asked, too."""
        super().server_close()
        self._ready.close()
        while self._silent:
            request, _ = self._silent.popitem()[1]
            self._forget(request)
            self.shutdown_request(request)
        with self._lock:
            unread = list(self._unread)
        for request in unread:
            _put_out(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See BaseServer, which prints a traceback."""
        self._faults.note("a scrape", sys.exc_info()[1] or OSError())


def _put_out(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone by itself


def _answering(app: App, faults: PeerFaults) -> App:
    """Answers where the app raises. An Accept that it cannot read (a version without numbers) is left out."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        try:
            try:
                return app(environ, start)
            except (TypeError, ValueError):
                return app({**environ, "HTTP_ACCEPT": ""}, start)
        except Exception as error:  # noqa: BLE001 - of this request; the others are answered
            faults.note("a scrape", error)
            start("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the metrics cannot be read: see the log of the program\n"]

    return answer


def _guarded(app: App) -> App:
    """For who has a certificate, or the token."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ[_KNOWN]:
            return app(environ, start)
        start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"a certificate is wanted, or the token\n"]

    return answer
