"""TCP, and what all transports over socket descriptors share."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - a lookup needs it, in a thread while another one may fork
import errno
import itertools
import os
import socket
import struct
from collections.abc import Hashable
from typing import Any

from transfer.transports.address import Address, format_host, is_numeric
from transfer.transports.base import Capabilities, Listener, Transport
from transfer.transports.config import DescriptorOptions
from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import (
    AddressError,
    AddressInUse,
    AddressNotAvailable,
    Broken,
    InternalError,
    TransferError,
)
from transfer.transports.forking import undivided

#: the peer has gone before accept; Linux also reports network errors of the new connection here
_GONE = frozenset(
    {
        errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EOPNOTSUPP, errno.EPERM,
    }
)  # fmt: skip
_SIOCGIFADDR = 0x8915

_SocketAddress = tuple[Any, ...]


class TcpTransport(Transport):
    """Also the transport by which rdma and ucx meet their peer."""

    scheme = "tcp"
    capabilities = Capabilities(networked=True)

    def __init__(self, options: DescriptorOptions | None = None) -> None:
        self.options = DescriptorOptions() if options is None else options
        self._turn = itertools.count()

    def listen(self, address: Address, *, backlog: int = 4096) -> Listener:
        family, where = bind_address(address)
        listener = new_socket(family, self.options)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # [::] binds both families, whatever the system's default is.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.host != "::"))
            listener.bind(where)
            listener.listen(backlog)
        except OSError as error:
            listener.close()
            raise bind_error(error, address) from error
        name = listener.getsockname()
        host = "0.0.0.0" if address.host == "*" else name[0]
        return SocketListener(listener, address.with_port(name[1], host), self.options)

    def listen_key(self, address: Address) -> Hashable | None:
        return bind_address(address) if address.port else None

    def tune(self, connection: socket.socket) -> None:
        tune(connection, self.options)

    def start_connect(self, address: Address) -> socket.socket:
        """Starts to connect. A host with several addresses: each call takes the next one, IPv4 first."""
        if address.is_wildcard:
            raise AddressError(f"{address} can be bound, not connected to", hint="name a host and a port")
        candidates = _resolve(address)
        family, where = candidates[next(self._turn) % len(candidates)]
        connection = new_socket(family, self.options)
        return begin_connect(connection, where, address)


class SocketListener(Listener):
    """A listening socket. Its owner closes it; a forgotten one warns as Python's sockets do."""

    def __init__(self, listener: socket.socket, address: Address, options: DescriptorOptions) -> None:
        self.address = address
        self._socket = listener
        self._options = options

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[socket.socket, str] | None:
        try:
            connection, where = self._socket.accept()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise descriptor_error(error, f"cannot accept on {self.address}") from error
        try:
            connection.setblocking(False)
            tune(connection, self._options)
        except OSError:  # it was reset between accept and here
            connection.close()
            return None
        return connection, describe(where)

    def close(self) -> None:
        self._socket.close()


# --- shared with ipc --------------------------------------------------------------------------


def new_socket(family: int, options: DescriptorOptions) -> socket.socket:
    """A non-blocking stream socket with its options set. Raises OutOfDescriptors, AddressNotAvailable."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            raise AddressNotAvailable("this machine has no such address family", hint=str(error)) from error
        raise descriptor_error(error, "cannot make a socket") from error
    try:
        made.setblocking(False)
        tune(made, options)
    except OSError as error:
        made.close()
        raise InternalError(f"the system refuses a socket option: {error}") from error
    return made


def tune(connection: socket.socket, options: DescriptorOptions) -> None:
    """Sets sizes and keepalive. No Nagle: frames are gathered already, and have to leave at once."""
    if options.send_buffer > 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.receive_buffer > 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.keepalive >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options.keepalive)
    for name, value in (
        ("TCP_KEEPIDLE", options.keepalive_idle),
        ("TCP_KEEPINTVL", options.keepalive_interval),
        ("TCP_KEEPCNT", options.keepalive_count),
    ):
        if value > 0 and hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def begin_connect(
    connection: socket.socket, where: _SocketAddress | str | bytes, address: Address
) -> socket.socket:
    """Starts the connect of a non-blocking socket, which is closed if that fails. Raises Broken."""
    code = connection.connect_ex(where)
    if code in (0, errno.EINPROGRESS):
        return connection
    connection.close()
    raise connect_error(code, address)


def connect_error(code: int, address: Address) -> TransferError:
    """The error of a failed connect; the OSError is chained."""
    cause = OSError(code, os.strerror(code))
    hints = {
        errno.ECONNREFUSED: "no process listens there; is the other side started, and the port right?",
        errno.ENOENT: "no process listens there; is the other side started, and the path right?",
        errno.EACCES: "this user may not connect there",
        errno.EAGAIN: "the other side's backlog is full",
    }
    error = Broken(f"cannot connect to {address}: {cause.strerror}", hint=hints.get(code, ""), errno=code)
    error.__cause__ = cause
    return error


def bind_error(error: OSError, address: Address) -> TransferError:
    """The error of a failed bind."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"{address} is in use", hint="take another port, or port 0 for any free one")
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressNotAvailable(f"{address} is not an address of this machine", hint="* binds every one")
    if error.errno == errno.EACCES:
        return AddressError(
            f"this user may not bind {address}", hint="ports below 1024 need rights", errno=errno.EACCES
        )
    return AddressError(f"cannot bind {address}: {error.strerror}", errno=error.errno)


def describe(where: Any) -> str:
    """A peer's address as text: "127.0.0.1:4711", "[::1]:4711"; empty for an unnamed Unix socket."""
    if isinstance(where, tuple):
        return f"{format_host(where[0])}:{where[1]}"
    text = where.decode(errors="replace") if isinstance(where, bytes) else str(where)
    return text.replace("\0", "@")  # the abstract space


# --- hosts ------------------------------------------------------------------------------------


def bind_address(address: Address) -> tuple[int, _SocketAddress]:
    """(family, address to bind). Names are tried as interfaces first, as in libzmq."""
    if address.host == "*":
        return socket.AF_INET, ("0.0.0.0", address.port)
    if not is_numeric(address.host):
        number = _interface_address(address.host)
        if number is not None:
            return socket.AF_INET, (number, address.port)
    return _resolve(address)[0]


def _resolve(address: Address) -> list[tuple[int, _SocketAddress]]:
    """The socket addresses of a host, IPv4 first. May block on a lookup. Raises AddressError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise AddressError(
            f"the host {address.host!r} of {address} cannot be found: {error}",
            hint=f"check its spelling and DNS; interfaces of this machine: {names}",
        ) from error
    unique = {(family, where): None for family, _, _, _, where in found}
    return sorted(unique, key=lambda entry: entry[0] != socket.AF_INET)


def _interface_address(name: str) -> str | None:
    """The IPv4 address of an interface of this machine, or None if there is no such interface."""
    if name not in {known for _, known in socket.if_nameindex()}:
        return None
    with undivided():
        import fcntl  # not on every system

    request = struct.pack("256s", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise AddressNotAvailable(f"the interface {name} has no IPv4 address") from error
    return socket.inet_ntoa(answer[20:24])
