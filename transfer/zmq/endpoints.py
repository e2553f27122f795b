"""Endpoints of a socket, with pyzmq's errors."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import transfer.sockets.socket
from transfer.sockets.binding import Binding, SocketT, endpoint_text
from transfer.transports import core, registry
from transfer.transports.address import parse
from transfer.transports.errors import AddressError, Closed, TransferError
from transfer.zmq.constants import Errno
from transfer.zmq.error import ZMQBindError, ZMQError

if TYPE_CHECKING:
    from transfer.sockets.socket import Socket
    from transfer.zmq.option_attributes import SocketAttributes
    from transfer.zmq.serial import Serialising

    class Base(SocketAttributes, Serialising, Socket): ...  # type: ignore[misc]  # options are int or bytes
else:
    #: transfer.Socket over the current core
    Base = transfer.sockets.socket.socket_class(core)

#: seconds for which disconnect flushes the queue; other peers get the rest
DISCONNECT_TIMEOUT = 1.0


class Bound(Binding[SocketT]):
    """The result of `bind` and `connect`: a context manager that ends the endpoint."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<SocketContext({self.kind}={endpoint_text(self.addr)!r})>"


def bad_endpoint(error: TransferError, addr: str) -> TransferError:
    """Adds pyzmq's number, and the endpoint to the text."""
    if isinstance(error, Closed):
        return error
    scheme, separator, rest = addr.partition("://")
    if isinstance(error, AddressError) and error.errno == Errno.EINVAL and separator:
        if scheme not in registry.schemes():
            error.errno = Errno.EPROTONOSUPPORT
        elif rest.rpartition(":")[2].isdigit() and int(rest.rpartition(":")[2]) < 65536:
            error.errno = errno.ENODEV  # it is valid, but this machine has no such interface
    if scheme == "udp":
        error.errno = Errno.ENOCOMPATPROTO  # libzmq speaks it, with socket types that do not exist here
    if addr not in str(error):
        error.args = (f"{error} (addr={addr!r})",)
    return error


def unknown_endpoint(error: TransferError, addr: str) -> TransferError:
    """Adds pyzmq's number for an endpoint that the socket does not have."""
    if isinstance(error, AddressError):
        parse(endpoint_text(addr))  # an invalid endpoint is EINVAL
        error.errno = errno.ENOENT
    return error


def bind_in_range(bind: Callable[[str], Any], addr: str, ports: range, tries: int) -> int:
    """Binds to a free port of the range, and returns it. Raises ZMQBindError."""
    for _ in range(tries):
        port = random.choice(ports)
        try:
            bind(f"{addr}:{port}")
        except ZMQError as error:
            if error.errno != Errno.EADDRINUSE:
                raise
        else:
            return port
    raise ZMQBindError(f"no free port for {addr} after {tries} tries")
