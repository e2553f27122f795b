"""What an XPUB receives: its peers' subscriptions, and what XSUBs send besides them."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.patterns.xpub_xsub import UPSTREAM
from transfer.transports.errors import TransferError

if TYPE_CHECKING:
    from transfer.patterns import XPublisher
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.peer import Peer

#: messages, and their bytes, that wait for a program that does not receive: more are dropped and counted
MAX_UNREAD, MAX_UNREAD_BYTES = 100_000, 64 << 20
#: messages that are dropped before the waiting ones are counted again, which takes time
_RECOUNT = 1000


class UpstreamMessages:
    """Gives them to the socket, in order. Any thread that finds some may call it."""

    def __init__(self, state: ConnectionState, pattern: XPublisher) -> None:
        self._state, self._pattern = state, pattern
        self._giving = threading.RLock()
        #: at least what waits, in messages and in bytes
        self._unread = self._unread_bytes = 0

    def deliver(self) -> None:
        """Gives the pattern's notices to the program."""
        notices = self._pattern.notices
        while notices:
            with self._giving, suppress(IndexError):  # another thread was faster
                stream, data = notices.popleft()
                socket = self._state.socket()
                if socket is not None:
                    self._give(socket, stream, [socket._frame(data)])

    @staticmethod
    def admits(peer: Peer) -> bool:
        """Whether the peer is an XSUB, which may send messages."""
        return peer.agreement is not None and UPSTREAM in peer.agreement.features

    def take(self, stream: Any, frames: list[Any]) -> None:
        """Takes a message that an XSUB has sent."""
        socket = self._state.socket()
        if socket is not None:
            with self._giving:
                self._give(socket, stream, frames)

    def _give(self, socket: Any, stream: Any, frames: list[Any]) -> None:
        size = sum(len(frame.data) for frame in frames)
        if self._is_full(socket, size):
            self._pattern.drop("unread")
            return
        self._unread += 1
        self._unread_bytes += size
        with suppress(TransferError):  # another thread closes the socket
            socket._give_again(stream, frames)
            socket.messages_received += 1
            socket.bytes_received += size

    def _is_full(self, socket: Any, size: int) -> bool:
        if self._unread < MAX_UNREAD and self._unread_bytes + size <= MAX_UNREAD_BYTES:
            return False
        if self._unread > MAX_UNREAD + 1:  # they were counted a moment ago
            self._unread -= 1
            return True
        found = socket._found()
        self._unread = len(found)
        self._unread_bytes = sum(len(frame.data) for _, frames in found for frame in frames)
        full = self._unread >= MAX_UNREAD or (
            self._unread > 0 and self._unread_bytes + size > MAX_UNREAD_BYTES
        )
        if full:
            self._unread = MAX_UNREAD + _RECOUNT
        return full
