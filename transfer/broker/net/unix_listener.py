"""A listening Unix socket on the broker's loop."""

from __future__ import annotations

import asyncio
import socket

from transfer.broker.net.listener import Accepted, LoopListener
from transfer.transports.address import Address
from transfer.transports.ipc import IpcTransport


class LoopUnixListener(LoopListener):
    """A Listener at a Unix socket: a file for only this user (mode 0600), or an abstract one.

    endpoint: where it listens. Raises AddressInUse, AddressError.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, accepted: Accepted) -> None:
        self._local = IpcTransport().listen(address)
        self.endpoint = str(self._local.address)
        super().__init__(loop, self.endpoint, 0, accepted, made=socket.socket(fileno=self._local.fileno()))

    def close(self) -> None:
        """See Listener. It also removes the file."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.detach()
            self._local.close()

    def _accept(self) -> tuple[socket.socket, str] | None:
        return self._local.accept()
