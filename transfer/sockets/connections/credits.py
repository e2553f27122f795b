"""Credits: how they are counted, and how they are read while no call receives."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.sockets import drain
from transfer.sockets.connections import refusal
from transfer.sockets.peer import Peer
from transfer.transports.core.wire import CREDIT, Control
from transfer.transports.errors import Again, Broken, Closed, ProtocolError

if TYPE_CHECKING:
    from transfer.sockets.connections.state import ConnectionState

#: seconds until the first check for credits, and the longest pause between two checks without result
_FIRST, _LONGEST = 0.02, 0.16
#: with more unread bytes there are messages among them, which the application reads
_LITTLE = 64 * 1024


class Credits:
    """Reads the credits of a socket that also receives while its application only sends. They arrive among
    the messages: it reads up to the first message, which is kept for the next receive."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._pause = _FIRST
        self._confirmed = -1

    def await_credits(self) -> None:
        """Starts to look for credits: a sent message is kept, or has a tracker, until it is confirmed."""
        if self._state.receives and "credits" not in self._state.timers:
            self._pause = _FIRST
            self._state.later("credits", _FIRST, self._poll_credits)

    def _poll_credits(self) -> None:
        self.read_credits()
        peers = list(self._state.peers.values())
        if not any(peer.trackers or peer.retained for peer in peers):
            return
        confirmed = sum(peer.stream.confirmed for peer in peers)
        self._pause = _FIRST if confirmed != self._confirmed else min(2 * self._pause, _LONGEST)
        self._confirmed = confirmed
        self._state.later("credits", self._pause, self._poll_credits)

    def credited(self, peer: Peer, frame: Any) -> None:
        if frame.data[:1] == bytes([Control.CREDIT]):
            self.on_credit(peer, bytes(frame.data))

    def on_credit(self, peer: Peer, data: bytes) -> None:
        """Handles the count of messages that the peer has consumed. Raises ProtocolError."""
        if len(data) != CREDIT.size:
            raise ProtocolError("control", f"a credit of {len(data)} bytes")
        consumed = CREDIT.unpack(data)[1]
        if consumed > peer.stream.sent:
            raise ProtocolError("control", f"a credit for {consumed} messages of {peer.stream.sent}")
        peer.confirm(consumed)

    def refused(self, peer: Peer, data: bytes) -> None:
        """Handles the reason that a peer gives for the end. It has consumed all before a refused message."""
        peer.refusal = refusal.decode(data)
        if peer.confirms and peer.refusal[1]:
            peer.confirm(min(peer.refusal[1] - 1, peer.stream.sent))

    def read_credits(self) -> None:
        """Reads credits without blocking; does nothing while another thread receives."""
        socket = self._state.socket()
        if socket is None or not self._state.receives or self._state.closing:
            return
        peers = [peer for peer in list(self._state.peers.values()) if peer.confirms]
        if any(peer.fd < 0 or 0 < drain.unread(peer) <= _LITTLE for peer in peers):
            with suppress(Again, Broken, Closed):
                socket._readable()
