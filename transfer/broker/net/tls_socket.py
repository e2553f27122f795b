"""A TCP connection with TLS on it, the handshake done."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel

#: bytes that asyncio reads at once, so that nothing stays in TLS of which the descriptor does not tell
_ROOM = 64 << 10


class TlsSocket(socket.socket):
    """Whoever reads and writes it takes `channel`; the socket below is for descriptors, and its end.

    It takes over the descriptor of `connection`.
    """

    def __init__(self, connection: socket.socket, channel: TlsChannel) -> None:
        super().__init__(fileno=connection.detach())
        self.channel = channel
        self._owed = 0  # bytes that were sent and not yet told

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As a plain socket's, for asyncio. Raises BlockingIOError, OSError."""
        return self.channel.recv(min(size, _ROOM))

    def send(self, data: Any, flags: int = 0) -> int:
        """As a plain socket's, for asyncio, which comes back as long as less than all was taken: so while
        ciphertext waits for the kernel, the last byte is told later. Raises BlockingIOError, OSError."""
        if not self.channel.flush():
            raise BlockingIOError
        owed, self._owed = self._owed, 0
        with memoryview(data) as whole, whole[owed:] as rest:  # an error leaves no view to asyncio
            taken = owed + (self.channel.send(rest) if rest else 0)
        if taken and not self.channel.flush():
            self._owed = 1
        return taken - self._owed

    def shutdown(self, how: int) -> None:
        """Tells the peer that nothing follows, before the connection does."""
        self.channel.close()
        super().shutdown(how)

    def close(self) -> None:
        """Tells the peer that nothing follows, and ends it. Idempotent."""
        if self.fileno() >= 0:
            self.channel.close()
        super().close()


def channel_of(connection: socket.socket) -> TlsChannel | None:
    """What a connection is read and written by; None: itself."""
    return connection.channel if isinstance(connection, TlsSocket) else None
