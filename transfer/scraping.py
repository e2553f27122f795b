"""The HTTP server of metrics: a thread for each who asks, TLS if there is TLS, and nobody who blocks it."""

from __future__ import annotations

import io
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from transfer.https import Https, bearer
from transfer.peer_faults import PeerFaults
from transports.arguments import wrong
from transports.errors import SecurityError
from transports.security.guard import check_listening, skips_token

#: seconds that somebody has to shake hands, to ask, and to read
_PATIENCE = 10.0
#: who ask at once; when there are more the oldest is put out
_MOST = 64
#: in the environment of a request: a certificate was shown, and is good
_CERTIFICATE = "transfer.certificate"

_log = logging.getLogger("transfer")

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def check_registering(context: Any, registry: Any) -> None:
    """Raises ArgumentError."""
    if not hasattr(context, "tally"):
        raise wrong("context", context, "a transfer.Context")
    if not (registry is None or hasattr(registry, "register")):
        raise wrong("registry", registry, "a CollectorRegistry of prometheus_client, or None")


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE
    #: of a request line that names none: what is answered has a status line all the same
    default_request_version = "HTTP/1.0"

    def get_environ(self) -> dict[str, Any]:
        """See WSGIRequestHandler."""
        shown = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        return {**super().get_environ(), _CERTIFICATE: bool(shown)}

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read it."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes tracebacks: of peers who went, since `_answering` logs those of the app."""
        return io.StringIO()


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
        self._https = https
        self._asking: dict[socket.socket, None] = {}  # the oldest first
        self._asking_lock = threading.Lock()
        super().__init__((where, number), _Handler)
        self._faults = PeerFaults(_log)
        app = _answering(app, self._faults)
        self.set_app(_guarded(app, https) if security.tls and security.authenticates else app)
        self.port: int = self.server_address[1]

    def start(self) -> threading.Thread:
        """Serves in a thread, until `shutdown`."""
        thread = threading.Thread(
            target=self.serve_forever, args=(0.1,), name="transfer-metrics", daemon=True
        )
        thread.start()
        return thread

    def process_request(self, request: Any, client_address: Any) -> None:
        """See ThreadingMixIn."""
        with self._asking_lock:
            if len(self._asking) >= _MOST:
                oldest = next(iter(self._asking))
                del self._asking[oldest]
                _put_out(oldest)
            self._asking[request] = None
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        request.settimeout(_PATIENCE)
        try:
            if not self._https.security.tls:
                super().finish_request(request, client_address)
                return
            with self._https.context().wrap_socket(request.dup(), server_side=True) as secured:
                super().finish_request(secured, client_address)
        except OSError:
            return  # it went, or had no certificate
        finally:
            with self._asking_lock:
                self._asking.pop(request, None)

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


def _guarded(app: App, https: Https) -> App:
    """For who has a certificate, or the token."""

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        known = https.security.asks_certificates and environ[_CERTIFICATE]
        if known or https.has_token(bearer(environ.get("HTTP_AUTHORIZATION"))):
            return app(environ, start)
        start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"a certificate is wanted, or the token\n"]

    return answer
