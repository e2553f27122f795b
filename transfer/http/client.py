"""The HTTP client of the commands: a request has one deadline, and its answer a limit of bytes."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

#: bytes of an answer; a broker's largest answer is a page of 10,000 topics, or of dead letters
MOST = 64 << 20
#: bytes of one read, so that an answer's announced length allocates no memory
_PIECE = 64 << 10


class TooLarge(http.client.HTTPException):
    """The answer is larger than the limit."""


class Trust(NamedTuple):
    """Checks of the server. context: verifies its certificate. name: a name that it has to contain."""

    context: ssl.SSLContext
    name: str


class Bounds:
    """Limits of an answer. timeout: seconds from now on until its end. most: bytes."""

    def __init__(self, timeout: float, most: int = MOST) -> None:
        self._timeout, self._most = timeout, most
        self.renew()

    def renew(self) -> None:
        """Restarts the time and the count of bytes."""
        self._end, self._bytes = time.monotonic() + self._timeout, 0

    def rest(self) -> float:
        """Returns the seconds that are left. Raises TimeoutError if there are none."""
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        return rest

    def count(self, arrived: int) -> None:
        """Counts received bytes. Raises TooLarge."""
        self._bytes += arrived
        if self._bytes > self._most:
            raise TooLarge(f"more than {self._most} bytes")


class HttpResponse(http.client.HTTPResponse):
    """An answer that is read within bounds, including its headers."""

    def __init__(self, sock: socket.socket, bounds: Bounds, method: str) -> None:
        super().__init__(sock, method=method)
        self._bounds = bounds
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedReader(sock, bounds))

    def whole(self) -> bytes:
        """Returns the body. Raises HTTPException, TimeoutError, OSError."""
        body = bytearray()
        while piece := self.read(_PIECE):
            body += piece
        if self.length:  # announced bytes are missing
            raise http.client.IncompleteRead(bytes(body), self.length)
        return bytes(body)

    def lines(self) -> Iterator[bytes]:
        """Yields the lines of the body. The bounds apply to each line, not to all. Raises as `whole`."""
        while line := self.readline():
            yield line
            self._bounds.renew()


@contextmanager
def request(
    host: str,
    port: int,
    path: str,
    *,
    bounds: Bounds,
    trust: Trust | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[HttpResponse]:
    """Sends a GET, or a POST if there is a body, and yields the answer.

    It follows no redirect, uses no proxy.

    Raises TimeoutError, OSError, HTTPException; ValueError for an invalid header.
    """
    connection = http.client.HTTPConnection(host, port, timeout=bounds.rest())
    with closing(connection):
        connection.sock = _connected(host, port, bounds, trust)
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Connection": "close", **(headers or {})})
        with HttpResponse(connection.sock, bounds, method) as answer:
            answer.begin()
            yield answer


def _connected(host: str, port: int, bounds: Bounds, trust: Trust | None) -> socket.socket:
    sock = _connect_any(host, port, bounds)
    if trust is not None:
        sock.settimeout(bounds.rest())
        sock = trust.context.wrap_socket(sock, server_hostname=trust.name)  # closes the socket if it fails
    sock.settimeout(bounds.rest())
    return sock


def _connect_any(host: str, port: int, bounds: Bounds) -> socket.socket:
    """Connects to the first of the host's addresses that accepts."""
    failure = OSError("the host has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(bounds.rest())
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


class _BoundedReader(io.RawIOBase):
    """Reads a connection within bounds."""

    def __init__(self, sock: socket.socket, bounds: Bounds) -> None:
        self._sock, self._bounds = sock, bounds
        self._raw = sock.makefile("rb", buffering=0)  # holds the connection open until it is closed

    def readable(self) -> bool:
        return True

    def readinto(self, room: WriteableBuffer) -> int:
        self._sock.settimeout(self._bounds.rest())
        count = self._raw.readinto(room) or 0
        self._bounds.count(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
