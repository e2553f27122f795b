"""The HTTP that our commands speak: a request has one deadline, and its answer a limit of bytes."""

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

#: bytes of an answer: the largest of a broker is a page of 10,000 topics, or of dead letters
MOST = 64 << 20
#: bytes of one read: no memory is taken for what an answer announces
_PIECE = 64 << 10


class TooLarge(http.client.HTTPException):
    """More bytes come than are read."""


class Trust(NamedTuple):
    """context: checks the server's certificate. name: what that has to name."""

    context: ssl.SSLContext
    name: str


class Bounds:
    """timeout: seconds from now on in which all has to be there. most: bytes that are read."""

    def __init__(self, timeout: float, most: int = MOST) -> None:
        self._timeout, self._most = timeout, most
        self.renew()

    def renew(self) -> None:
        """Both begin again."""
        self._end, self._bytes = time.monotonic() + self._timeout, 0

    def rest(self) -> float:
        """Seconds. Raises TimeoutError if there are none."""
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        return rest

    def count(self, arrived: int) -> None:
        """Raises TooLarge."""
        self._bytes += arrived
        if self._bytes > self._most:
            raise TooLarge(f"more than {self._most} bytes")


class Answer(http.client.HTTPResponse):
    """It is read within the bounds, its headers too."""

    def __init__(self, sock: socket.socket, bounds: Bounds, method: str) -> None:
        super().__init__(sock, method=method)
        self._bounds = bounds
        self.fp.close()
        self.fp = io.BufferedReader(_Arriving(sock, bounds))

    def whole(self) -> bytes:
        """Its body. Raises HTTPException, TimeoutError, OSError."""
        body = bytearray()
        while piece := self.read(_PIECE):
            body += piece
        if self.length:  # it was announced, and did not come
            raise http.client.IncompleteRead(bytes(body), self.length)
        return bytes(body)

    def lines(self) -> Iterator[bytes]:
        """The lines of its body: of each one the bounds, since all together have none. Raises as `whole`."""
        while line := self.readline():
            yield line
            self._bounds.renew()


@contextmanager
def asked(
    host: str,
    port: int,
    path: str,
    *,
    bounds: Bounds,
    trust: Trust | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Answer]:
    """The answer to GET, or POST if there is a body; no redirect is followed, and no proxy asked. Raises
    TimeoutError, OSError, HTTPException; ValueError for a header that cannot be."""
    connection = http.client.HTTPConnection(host, port, timeout=bounds.rest())
    with closing(connection):
        connection.sock = _connected(host, port, bounds, trust)
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Connection": "close", **(headers or {})})
        with Answer(connection.sock, bounds, method) as answer:
            answer.begin()
            yield answer


def _connected(host: str, port: int, bounds: Bounds, trust: Trust | None) -> socket.socket:
    sock = _dialled(host, port, bounds)
    if trust is not None:
        sock.settimeout(bounds.rest())
        sock = trust.context.wrap_socket(sock, server_hostname=trust.name)  # it closes it when it fails
    sock.settimeout(bounds.rest())
    return sock


def _dialled(host: str, port: int, bounds: Bounds) -> socket.socket:
    """By the first of its addresses that takes it."""
    failure = OSError("it has no address")
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


class _Arriving(io.RawIOBase):
    """The bytes of a connection, within its bounds."""

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
