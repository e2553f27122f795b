"""A TCP connection with TLS on it, the handshake done."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transports.core_contract import TlsChannel


class Secured(socket.socket):
    """Whoever reads and writes it takes `channel`; the socket below is for descriptors, and its end.

    It takes over the descriptor of `connection`.
    """

    def __init__(self, connection: socket.socket, channel: TlsChannel) -> None:
        super().__init__(fileno=connection.detach())
        self.channel = channel

    def close(self) -> None:
        """Tells the peer that nothing follows, and ends it. Idempotent."""
        if self.fileno() >= 0:
            self.channel.close()
        super().close()


def channel_of(connection: socket.socket) -> TlsChannel | None:
    """What a connection is read and written by; None: itself."""
    return connection.channel if isinstance(connection, Secured) else None
