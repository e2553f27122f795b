"""The base of the clients for abtp/1: one ZeroMQ socket, and TLS in front of it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from transfer.broker.clients.tls import checked
from transfer.broker.clients.tunnel import Tunnel
from transfer.broker.protocols.abtp_signing import Signer
from transfer.transports import core
from transfer.transports.address import parse
from transfer.transports.arguments import patience, text
from transfer.transports.errors import Again, Closed, SecurityError, comes_with
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.guard import check_connecting, is_private

with comes_with("fronts", __name__):
    import zmq

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: seconds between two polls for messages: another thread's send may consume libzmq's signal
POLL_INTERVAL = 0.05


class AbtpConnection:
    """A socket that threads share: only one at a time uses it. With TLS it connects by a tunnel."""

    def __init__(self, kind: int, endpoint: str, timeout: float, security: Security | None) -> None:
        self._timeout = timeout = patience(timeout, endless=False) or 0.0
        parse(text(endpoint, "endpoint"))
        self._lock = threading.RLock()
        security = checked(security)
        if not is_private(endpoint):
            check_connecting(endpoint, security)
        self._tunnel: Tunnel | None = None
        if security.tls and endpoint.startswith("tcp://"):
            self._tunnel = Tunnel(endpoint, security)
            endpoint = self._tunnel.endpoint
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, int(min(timeout, 1.0) * 1000))
        self._socket.connect(endpoint)

    def close(self) -> None:
        """Closes the connection, and waits up to a second until sent messages are flushed. Idempotent."""
        with self._lock:
            self._context.destroy()
        if self._tunnel is not None:
            self._tunnel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _send_now(self, frames: tuple[bytes, ...], sign: Signer | None) -> None:
        """Sends without waiting. sign: signs the last frame, in the order of sending.

        Raises zmq.Again, Closed.
        """
        with self._lock:
            self._check_open()
            signature = (sign.sign(frames[-1]),) if sign is not None else ()
            self._socket.send_multipart((*frames, *signature), zmq.DONTWAIT)

    def _send(self, *frames: bytes, sign: Signer | None = None) -> None:
        """Sends a message. Raises Again if the broker does not take it in time, Closed."""
        deadline = time.monotonic() + self._timeout
        while True:
            with suppress(zmq.Again):
                self._send_now(frames, sign)
                return
            if time.monotonic() > deadline:
                raise Again(f"the broker took nothing in {self._timeout} s", hint=self._known_reason)
            time.sleep(POLL_INTERVAL)

    def _frames(self, deadline: float) -> list[bytes]:
        """Returns the next message. Raises Again if nothing arrives in time, Closed."""
        while True:
            with self._lock:
                self._check_open()
                try:
                    return self._socket.recv_multipart(zmq.DONTWAIT)
                except zmq.Again:
                    pass
                waiter = zmq.Poller()
                waiter.register(self._socket.fileno(), zmq.POLLIN)
            left = deadline - time.monotonic()
            if left <= 0:
                raise Again("nothing came in time", hint=self._known_reason)
            waiter.poll(max(1, int(min(left, POLL_INTERVAL) * 1000)))

    @property
    def _known_reason(self) -> str:
        """The known reason of a failure, or ""."""
        return self._tunnel.failure if self._tunnel is not None else ""

    def _check_open(self) -> None:
        if self._context.closed:
            raise Closed("the client is closed")

    def _deadline(self, timeout: float | None) -> float:
        seconds = self._timeout if timeout is None else patience(timeout, endless=False) or 0.0
        return time.monotonic() + seconds


def signer(security: Security | None) -> Signer:
    """Makes a signer, which reads the token for each signature. Raises SecurityError if there is no token."""
    credentials = Credentials(checked(security), core)

    def token() -> bytes:
        found = credentials.tokens()
        if not found:
            raise SecurityError("there is no token to sign with", hint="name its file: TRANSFER_TOKEN_FILE")
        return found[0]

    token()
    return Signer(token)
