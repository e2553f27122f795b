"""A listening TCP socket on the broker's loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from transfer.throttled_log import ThrottledLog
from transfer.transports.address import format_host
from transfer.transports.connect.accept import share_of
from transfer.transports.connect.pacing import unpace
from transfer.transports.connect.pending import PENDING
from transfer.transports.descriptors import descriptor_hint, is_reserved
from transfer.transports.errors import AddressError, AddressInUse, InternalError, TransferError

_log = logging.getLogger("transfer.broker")
#: seconds for which it pauses when no descriptor is left: the backlog keeps new connections
_PAUSE = 0.1

#: takes a connection that was accepted, in non-blocking mode, and the peer's "host:port"
Accepted = Callable[[socket.socket, str], object]


class LoopListener:
    """Accepts connections and hands them to `accepted`. Used on the loop only.

    port 0: a free one; the attribute `port` is the real one. backlog: connections that the kernel keeps until
    they are accepted. allowed: raises if the broker may not listen at (numeric address, endpoint). made: a
    socket that listens already. Raises AddressInUse, AddressError, and what `allowed` raises.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        accepted: Accepted,
        *,
        backlog: int = 4096,
        allowed: Callable[[str, str], object] | None = None,
        made: socket.socket | None = None,
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._share = share_of(loop)
        self._throttled = ThrottledLog(_log)
        self._socket = made or _listening(host, port, backlog, allowed)
        self.host, self.port = host, port
        if made is None:
            self.host, self.port = self._socket.getsockname()[:2]
        loop.add_reader(self._socket.fileno(), self._ready)

    def close(self) -> None:
        """Stops listening; accepted connections stay open. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _ready(self) -> None:
        self._share.begin()
        while self._accept_next() and not self._share.is_over():
            continue

    def _accept_next(self) -> bool:
        """Accepts one connection. Returns False if none waits, or none can be accepted."""
        try:
            accepted = self._accept()
        except (OSError, TransferError) as error:
            PENDING.make_room()
            self._pause(getattr(error, "strerror", None) or str(error))
            return False
        if accepted is None:
            return False
        connection, peer = accepted
        if is_reserved(connection.fileno()) and not PENDING.make_room():
            connection.close()
            self._pause("the last descriptors are reserved for files")
            return False
        self._hand_out(connection, peer)
        return True

    def _accept(self) -> tuple[socket.socket, str] | None:
        """Returns a connection and its peer; None if none waits."""
        try:
            connection, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        return connection, f"{format_host(address[0])}:{address[1]}"

    def _hand_out(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                unpace(connection)
            self._accepted(connection, peer)
        except TransferError as error:
            self._throttled.log(
                logging.WARNING, "refused", "the connection of %s is refused: %s", peer, error
            )
            connection.close()
        except Exception:  # noqa: BLE001 - the other connections are still served
            _log.exception("a connection of %s cannot be served", peer)
            connection.close()

    def _pause(self, why: str) -> None:
        """Pauses, since the socket stays readable: without a pause the loop would only fail again."""
        text = "%s: a connection is not accepted: %s; %s"
        where = f"port {self.port}" if self.port else self.host
        self._throttled.log(logging.WARNING, "accept", text, where, why, descriptor_hint())
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._ready)


def _listening(
    host: str, port: int, backlog: int, allowed: Callable[[str, str], object] | None
) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    except OSError as error:
        raise AddressError(
            f"{host}:{port}: {error.strerror}", hint="a host of this machine, and a port"
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        if allowed is not None:
            allowed(listener.getsockname()[0], f"tcp://{format_host(host)}:{port}")
        listener.listen(backlog)
    except TransferError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        if error.errno in (98, 13):
            raise AddressInUse(
                f"{host}:{port}: {error.strerror}", hint="end the program that has it, or name another port"
            ) from error
        raise InternalError(f"{host}:{port} cannot be listened on: {error.strerror}") from error
    return listener
