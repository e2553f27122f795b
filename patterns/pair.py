"""PAIR: exactly one peer at a time, both ways."""

from __future__ import annotations

from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError


class Pair(Pattern):
    """Refuses a second peer as long as the first one is connected."""

    socket_type = SocketType.PAIR
    peer_types = frozenset({SocketType.PAIR})
    send_mode = SendMode.ROUND_ROBIN
    receive_mode = ReceiveMode.FAIR
    confirms = True
    #: hint of the error
    one_to_one = "a PAIR is one to one; use PUSH/PULL or ROUTER/DEALER for more peers"

    def check(self, socket_type: int, identity: bytes = b"") -> None:
        super().check(socket_type, identity)
        if self.peers:
            raise HandshakeError(
                "pair_busy",
                "this side's PAIR has its peer already",
                hint=self.one_to_one,
            )
