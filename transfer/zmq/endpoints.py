"""Endpoints and monitors of a socket, with pyzmq's errors."""

from __future__ import annotations

import errno
import random
from typing import Any

import transfer.sockets.socket
from transfer.sockets.binding import Binding
from transfer.sockets.endpoints import _text
from transfer.transports import core, registry
from transfer.transports.address import parse
from transfer.transports.arguments import text, whole
from transfer.transports.errors import AddressError, Closed, TransferError
from transfer.zmq.constants import Errno, Event, SocketType
from transfer.zmq.error import ZMQBindError, ZMQError
from transfer.zmq.monitor import MonitorPump

#: transfer.Socket over the current core
Base: Any = transfer.sockets.socket.socket_class(core)

#: seconds for which disconnect flushes the queue; other peers get the rest
_DISCONNECT = 1.0


class Bound(Binding):
    """The result of `bind` and `connect`: a context manager that ends the endpoint."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<SocketContext({self.kind}={_text(self.addr)!r})>"


class EndpointMethods(Base):
    """bind, connect, their opposites, and monitors."""

    _pump: MonitorPump | None
    _watcher: Any

    def _ended(self, error: Closed) -> Closed:
        """Returns pyzmq's error of a closed socket."""
        return error

    def _new_pair(self) -> Any:
        """Makes a PAIR of the same context, for monitors."""

    # -- endpoints -----------------------------------------------------------------------------

    def bind(self, addr: str) -> Any:
        """Binds. Raises ZMQError; `last_endpoint` has the real port."""
        _text(addr)
        try:
            return Bound(self, "bind", super().bind(addr).addr)
        except TransferError as error:
            raise self._bad_endpoint(error, _text(addr)) from error.__cause__

    def connect(self, addr: str) -> Any:
        """Starts to connect; messages that are sent before the peer is connected wait for it."""
        _text(addr)
        try:
            return Bound(self, "connect", super().connect(addr).addr)
        except TransferError as error:
            raise self._bad_endpoint(error, _text(addr)) from error.__cause__

    def _bad_endpoint(self, error: TransferError, addr: str) -> TransferError:
        """Adds pyzmq's number, and the endpoint to the text."""
        if isinstance(error, Closed):
            return self._ended(error)
        scheme, separator, rest = addr.partition("://")
        if isinstance(error, AddressError) and error.errno == Errno.EINVAL and separator:
            if scheme not in registry.schemes():
                error.errno = Errno.EPROTONOSUPPORT
            elif rest.rpartition(":")[2].isdigit() and int(rest.rpartition(":")[2]) < 65536:
                error.errno = errno.ENODEV  # it is valid, but this machine has no such interface
        if addr not in str(error):
            error.args = (f"{error} (addr={addr!r})",)
        return error

    def unbind(self, addr: str) -> None:
        """Stops listening on an endpoint. Raises ZMQError (ENOENT)."""
        try:
            super().unbind(addr)
        except TransferError as error:
            raise self._unknown_endpoint(error, addr) from None

    def disconnect(self, addr: str) -> None:
        """Ends the connection to an endpoint. Raises ZMQError (ENOENT)."""
        try:
            self._check_usable()
            record = self._links.release(_text(addr), bound=False)
        except TransferError as error:
            raise self._unknown_endpoint(error, addr) from None
        linger = self._linger_seconds(None)
        self._links.drop(record, min(linger, _DISCONNECT))

    def _unknown_endpoint(self, error: TransferError, addr: str) -> TransferError:
        if isinstance(error, AddressError):
            parse(_text(addr))  # an invalid endpoint is EINVAL
            error.errno = errno.ENOENT
        return error

    def bind_to_random_port(
        self, addr: str, min_port: int = 49152, max_port: int = 65536, max_tries: int = 100
    ) -> int:
        """Binds to a free port, in the range if one is given. Raises ZMQBindError."""
        text(addr, "addr")
        whole(min_port, "min_port", 0, 65535), whole(max_port, "max_port", min_port + 1, 65536)
        whole(max_tries, "max_tries", 1)
        if (min_port, max_port) == (49152, 65536):
            self.bind(f"{addr}:*")
            return int(self.last_endpoint.rsplit(b":", 1)[1])
        for _ in range(max_tries):
            port = random.randrange(min_port, max_port)
            try:
                self.bind(f"{addr}:{port}")
            except ZMQError as error:
                if error.errno != Errno.EADDRINUSE:
                    raise
            else:
                return port
        raise ZMQBindError(f"no free port for {addr} after {max_tries} tries")

    # -- events --------------------------------------------------------------------------------

    def monitor(self, addr: str | None, events: int = Event.ALL) -> None:
        """Sends the events of this socket to an inproc endpoint; None ends that."""
        if addr is not None:
            _text(addr)
        whole(events, "events", 0, 2**31 - 1)
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.close()
        if addr is not None:
            self._pump = MonitorPump(self, self._new_pair(), addr, int(events))

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Any:
        """A PAIR that receives the events; see `utils.monitor.recv_monitor_message`."""
        if self._watcher is not None and not self._watcher.closed:
            return self._watcher
        addr = addr or f"inproc://monitor.s-{self.fileno()}-{id(self):x}"
        self.monitor(addr, Event.ALL if events is None else events)
        self._watcher = watcher = self.context.socket(SocketType.PAIR)
        watcher.connect(addr)
        return watcher

    def disable_monitor(self) -> None:
        """Ends the monitor of `get_monitor_socket` or `monitor`."""
        self._watcher = None
        self.monitor(None, 0)
