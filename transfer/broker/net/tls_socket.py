"""A TCP connection with TLS, after its handshake."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel

#: bytes that asyncio reads at once: decrypted bytes that stay in TLS would not make the descriptor readable
_ROOM = 64 << 10


class TlsSocket(socket.socket):
    """A socket with TLS. Read and write by `channel`; the socket itself is for its descriptor, and to close.

    It takes over the descriptor of `connection`.
    """

    def __init__(self, connection: socket.socket, channel: TlsChannel) -> None:
        super().__init__(fileno=connection.detach())
        self.channel = channel
        self._owed = 0  # bytes that TLS has taken, and `send` has not reported

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receives as a plain socket does, for asyncio. Raises BlockingIOError, OSError."""
        return self.channel.recv(min(size, _ROOM))

    def send(self, data: Any, flags: int = 0) -> int:
        """Sends as a plain socket does, for asyncio. Raises BlockingIOError, OSError.

        asyncio calls it again as long as bytes are left. So it reports the last byte only after the kernel
        has taken all ciphertext.
        """
        if not self.channel.flush():
            raise BlockingIOError
        owed, self._owed = self._owed, 0
        with memoryview(data) as whole, whole[owed:] as rest:  # an error leaves no view to asyncio
            taken = owed + (self.channel.send(rest) if rest else 0)
        if taken and not self.channel.flush():
            self._owed = 1
        return taken - self._owed

    def shutdown(self, how: int) -> None:
        """Sends TLS's close notification before the connection's end."""
        self.channel.close()
        super().shutdown(how)

    def close(self) -> None:
        """Sends TLS's close notification, and closes the socket. Idempotent."""
        if self.fileno() >= 0:
            self.channel.close()
        super().close()


def channel_of(connection: socket.socket) -> TlsChannel | None:
    """Returns the TLS channel of a connection; None if it has no TLS."""
    return connection.channel if isinstance(connection, TlsSocket) else None
