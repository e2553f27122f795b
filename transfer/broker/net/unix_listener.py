"""A listening Unix socket on the broker's loop."""

from __future__ import annotations

import asyncio
import socket

from transfer.broker.net.listener import Accepted, Listener
from transfer.transports.address import Address
from transfer.transports.ipc import IpcTransport


class UnixListener(Listener):
    """As Listener, for this user's programs alone (mode 0600), or in the abstract space. endpoint: where that
    is. Raises AddressInUse, AddressError."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, accepted: Accepted) -> None:
        self._local = IpcTransport().listen(address)
        self.endpoint = str(self._local.address)
        super().__init__(loop, self.endpoint, 0, accepted, made=socket.socket(fileno=self._local.fileno()))

    def close(self) -> None:
        """See Listener. The file goes, too."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.detach()
            self._local.close()

    def _accept(self) -> tuple[socket.socket, str] | None:
        return self._local.accept()
