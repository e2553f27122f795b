"""Unix sockets: `ipc:///path/to.sock`, and `ipc://@name` in the abstract space, which leaves no file."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Hashable
from dataclasses import replace

from transfer.transports.address import Address
from transfer.transports.base import Capabilities, Listener, Transport
from transfer.transports.config import DescriptorOptions
from transfer.transports.errors import AddressError, AddressInUse, TransferError
from transfer.transports.peercred import peer_credentials
from transfer.transports.tcp import SocketListener, begin_connect, bind_error, new_socket, tune

_HINT = "remove the file if no process uses it"


class IpcTransport(Transport):
    """Stream sockets on one machine. A path of "*" stands for a new one in the temporary directory."""

    scheme = "ipc"
    capabilities = Capabilities(same_host=True)

    def __init__(self, options: DescriptorOptions | None = None) -> None:
        self.options = DescriptorOptions() if options is None else options

    def listen(self, address: Address, *, backlog: int = 4096) -> Listener:
        folder = None
        if address.path == "*":
            folder = tempfile.mkdtemp(prefix="transfer-")
            address = replace(address, path=os.path.join(folder, "socket"))
        listener = new_socket(socket.AF_UNIX, self.options)
        try:
            if not address.is_abstract:
                # The file gets the descriptor's mode. A later change of the file's would follow a link.
                os.fchmod(listener.fileno(), 0o600)
            _bind(listener, address)
            inode = None if address.is_abstract else _inode(address.path)
            listener.listen(backlog)
        except BaseException as error:
            listener.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise _bind_error(error, address) from error
            raise
        return IpcListener(listener, address, self.options, inode, folder)

    def listen_key(self, address: Address) -> Hashable | None:
        if address.is_abstract:
            return address.path
        inode = _inode(address.path)  # the file may have been removed, or replaced by another process's
        return None if inode is None else (os.path.realpath(address.path), *inode)

    def tune(self, connection: socket.socket) -> None:
        tune(connection, self.options)

    def start_connect(self, address: Address) -> socket.socket:
        if address.path == "*":
            raise AddressError(f"{address} can be bound, not connected to", hint="name the path")
        connection = new_socket(socket.AF_UNIX, self.options)
        return begin_connect(connection, _name(address), address)


class IpcListener(SocketListener):
    """Removes its file when it is closed, but no file that another program has put in its place."""

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        options: DescriptorOptions,
        inode: tuple[int, int] | None,
        folder: str | None,
    ) -> None:
        super().__init__(listener, address, options)
        self._inode = inode
        self._folder = folder
        self._pid = os.getpid()  # a forked child closes its copy, and the file stays the parent's

    def accept(self) -> tuple[socket.socket, str] | None:
        accepted = super().accept()
        if accepted is None or accepted[1]:
            return accepted
        # A connecting socket has no name: its process has a number.
        return accepted[0], f"process {peer_credentials(accepted[0]).process}"

    def close(self) -> None:
        inode, self._inode = self._inode, None
        # The file goes first: a client in between finds no socket, and not a dead one.
        if inode is not None and self._pid == os.getpid() and _inode(self.address.path) == inode:
            os.unlink(self.address.path)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
        super().close()


def _name(address: Address) -> str:
    return "\0" + address.path[1:] if address.is_abstract else address.path


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:  # gone, so `close` removes nothing
        return None
    return status.st_dev, status.st_ino


def _bind(listener: socket.socket, address: Address) -> None:
    """Binds; removes the file of a killed process, but not one with a listener."""
    try:
        listener.bind(_name(address))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or address.is_abstract:
            raise
        _remove_stale(address)
        listener.bind(_name(address))


def _remove_stale(address: Address) -> None:
    path = address.path
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise AddressInUse(f"{path} exists and is no socket", hint="take another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(path)
    if code != errno.ECONNREFUSED:  # also EAGAIN: a full backlog has a listener
        raise AddressInUse(f"{address} is in use", hint=_HINT)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _bind_error(error: OSError, address: Address) -> TransferError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return AddressError(
            f"the directory of {address} does not exist", hint="make it first", errno=error.errno
        )
    if error.errno == errno.EACCES:
        return AddressError(f"this user may not write to the directory of {address}", errno=errno.EACCES)
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"{address} is in use", hint=_HINT)
    return bind_error(error, address)
