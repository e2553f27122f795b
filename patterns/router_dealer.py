"""ROUTER and DEALER: requests and replies without lock-step, by identity.

A REQ sends no envelope, so a ROUTER makes it: the caller sees `[identity, b"", parts...]`, or
`[identity, number, b"", parts...]` where the REQ asked for correlation, and sends the same back.
Thus a proxy of ROUTER and DEALER in front of REP works as it does with ZeroMQ.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from transfer.patterns.base import (
    Admitted,
    Anyone,
    InFrame,
    OutFrame,
    Pattern,
    Peer,
    ReceiveMode,
    SendMode,
)
from transfer.patterns.req_rep import CORRELATED
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Unroutable, UsageError, not_a_buffer

_NUMBER = struct.Struct("<Q")
#: more than the messages that can wait in the core when their peer disconnects
_MAX_DEPARTED = 64


class Dealer(Pattern):
    """Round robin out, fair queue in."""

    socket_type = SocketType.DEALER
    peer_types = frozenset({SocketType.REP, SocketType.DEALER, SocketType.ROUTER})
    send_mode = SendMode.ROUND_ROBIN
    receive_mode = ReceiveMode.FAIR
    confirms = True


class Router(Pattern):
    """Addresses each message by its first part, the peer's identity."""

    socket_type = SocketType.ROUTER
    peer_types = frozenset({SocketType.REQ, SocketType.DEALER, SocketType.ROUTER})
    receive_mode = ReceiveMode.FAIR
    ordered = True
    confirms = True

    def __init__(self) -> None:
        super().__init__()
        self.mandatory = False
        self._identities: dict[Peer, bytes] = {}
        self._by_identity: dict[bytes, Peer] = {}
        #: number of the last request of each REQ peer
        self._requests: dict[Peer, int] = {}
        #: identities of the last disconnected peers, whose messages may still be read
        self._departed: dict[Peer, tuple[bytes, SocketType]] = {}
        self._count = 0

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        super().attach(peer, socket_type, identity)
        if not identity:
            self._count += 1
            identity = b"\0" + struct.pack(">I", self._count & 0xFFFFFFFF)
        replaced = self._by_identity.get(identity)
        self._identities[peer] = identity
        self._by_identity[identity] = peer
        return replaced

    def detach(self, peer: Peer) -> bool:
        # Other threads route and admit: the peer is added to the departed before it is removed.
        identity = self._identities.get(peer)
        if identity is not None:
            self._departed[peer] = identity, self.peers[peer]
            if len(self._departed) > _MAX_DEPARTED:
                del self._departed[next(iter(self._departed))]
        self._identities.pop(peer, None)
        if identity is not None and self._by_identity.get(identity) is peer:
            del self._by_identity[identity]
        was_there = super().detach(peer)
        self._requests.pop(peer, None)
        return was_there

    def holder(self, identity: bytes) -> Peer | None:
        return self._by_identity.get(identity) if identity else None

    def inherit(self, heir: Peer, peer: Peer) -> None:
        self.peers[heir] = self.peers[peer]
        self._identities[heir] = self._identities[peer]

    def routes_alone(self) -> dict[bytes, Peer] | None:
        return self._by_identity

    def plain_identity(self, peer: Peer) -> bytes | None:
        # The requests of a REQ are numbered, and its answers have the number of the last one.
        return None if self.peers.get(peer) is SocketType.REQ else self._identities.get(peer)

    def routes(self) -> dict[bytes, Peer]:
        """Returns the peers that messages can be sent to, by identity. Any thread."""
        return self._by_identity.copy()

    def may_send(self) -> bool:
        return True

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        identity = self._identities.get(peer)
        kind = self.peers.get(peer)
        if identity is None or kind is None:
            departed = self._departed.get(peer)
            if departed is None:
                self.drop("peer_gone")
                return None
            identity, kind = departed
        if kind is not SocketType.REQ:
            return [identity, *frames]
        number = frames[0].sequence
        if peer in self.peers:
            self._requests[peer] = number
        if number & CORRELATED:
            return [identity, _NUMBER.pack(number), b"", *frames]
        return [identity, b"", *frames]

    def addressee(self, given: Any) -> tuple[Peer, SocketType] | None:
        """Returns (peer, its type) for a message that begins with the part `given`; None: unknown. Raises
        Unroutable for an unknown identity if `mandatory`."""
        identity = _identity_of(given)
        peer = self._by_identity.get(identity)
        kind = None if peer is None else self.peers.get(peer)
        if peer is not None and kind is not None:
            return peer, kind
        if self.mandatory:  # unknown, or disconnecting at this moment
            raise Unroutable(
                f"no peer has the identity {identity!r}",
                hint="wait_for_peers(), or set router_mandatory = False to drop such messages",
            )
        return None

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        if len(frames) < 2:
            return self.malformed(
                frames,
                "a ROUTER's message begins with the identity of the peer",
                "send_multipart([identity, ...])",
            )
        found = self.addressee(frames[0][4])
        if found is None:
            self.drop("unroutable")
            return None, frames
        peer, kind = found
        if kind is SocketType.REQ:
            answer = self._answer(peer, frames[1:])
            if answer is None:
                return self.malformed(
                    frames,
                    "an answer to a REQ needs the empty part after its identity",
                    'send_multipart([identity, b"", ...]), as the request was received',
                )
            return peer, answer
        return peer, frames[1:]

    def malformed(
        self, frames: Sequence[OutFrame], what: str, hint: str
    ) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        """Handles a message that cannot have a receiver: raises UsageError."""
        raise UsageError(what, hint=hint)

    def _answer(self, peer: Peer, frames: Sequence[OutFrame]) -> Sequence[OutFrame] | None:
        """Converts the envelope that `admit` made back into the header's number. None: it is not complete."""
        number = self._requests.get(peer, 0)
        if len(frames) > 2 and len(frames[0][4]) == _NUMBER.size and not len(frames[1][4]):
            (number,) = _NUMBER.unpack(bytes(frames[0][4]))
            frames = frames[1:]
        if len(frames) < 2 or len(frames[0][4]):
            return None
        return [(flags, number, topic, meta, data) for flags, _, topic, meta, data in frames[1:]]


def _identity_of(given: Any) -> bytes:
    """Returns the first part of a message. Raises ArgumentError: `bytes` of a number would be zeros."""
    try:
        return given if type(given) is bytes else bytes(getattr(given, "buffer", None) or memoryview(given))
    except TypeError:
        raise not_a_buffer(given) from None
