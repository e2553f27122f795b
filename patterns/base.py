"""Base of all patterns: a small class over opaque peers.

A *peer* is any hashable object (in the product: a stream). A frame to send is the core's tuple
`(flags, sequence, topic, meta, data)`; a received frame has `.data`, `.sequence`, `.flags`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Protocol

from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError, NotSupported
from transfer.transports.req_rep_turn import Turn

Peer = Hashable
OutFrame = tuple[int, int, bytes | None, bytes | None, Any]


class InFrame(Protocol):
    """The part of the core's `Frame` that patterns use."""

    data: Any
    sequence: int
    topic: bytes | None


#: the result of `admit`: frames as they arrived, and parts that the pattern puts before them
Admitted = Sequence[InFrame | bytes]


class SendMode(IntEnum):
    """How the core distributes messages to send (the numbers of `core/contract.pyi`)."""

    NONE = 0
    ROUND_ROBIN = 1
    FANOUT = 2


class ReceiveMode(IntEnum):
    """How the core collects received messages."""

    NONE = 0
    FAIR = 1
    FILTERED = 2


class Anyone:
    """The target of a message for which the core chooses the peer (`peer_choice`)."""

    def __repr__(self) -> str:
        return "ANYONE"


ANYONE = Anyone()


class Pattern:
    """The state of one socket of one type.

    Not thread-safe: every method is short and never blocks, and its caller holds the GIL or a lock.
    """

    socket_type: ClassVar[SocketType]
    #: socket types of valid peers
    peer_types: ClassVar[frozenset[SocketType]]
    send_mode: ClassVar[SendMode] = SendMode.NONE
    receive_mode: ClassVar[ReceiveMode] = ReceiveMode.NONE
    #: True: every call needs this object (an order of calls, an envelope); False: the core alone handles
    #: the common case
    ordered: ClassVar[bool] = False
    #: the receiving side reports how much it consumed, so that the sender can count what a lost peer had
    confirms: ClassVar[bool] = False
    #: received messages are requests, which are useless when their peer is lost
    answers: ClassVar[bool] = False
    #: the reactor reads what peers send, at once, and not the application's calls
    reads_at_once: ClassVar[bool] = False
    #: calls take turns, one request at a time; the core shares `turn`
    in_turns: ClassVar[bool] = False

    #: the state of the turns, or the counter of the requests' round trips
    turn: Turn | None = None

    def __init__(self) -> None:
        self.peers: dict[Peer, SocketType] = {}
        #: dropped messages, by reason (a constant word)
        self.drops: dict[str, int] = {}

    @classmethod
    def modes(cls) -> tuple[int, int, int]:
        """Returns the socket type on the wire, the send mode and the receive mode, as the core's numbers."""
        return int(cls.socket_type.on_wire), int(cls.send_mode), int(cls.receive_mode)

    # -- peers ---------------------------------------------------------------------------------

    def check(self, socket_type: int, identity: bytes = b"") -> None:
        """Checks that a peer of this type may be attached now. Raises HandshakeError."""
        if socket_type not in self.peer_types:
            name = SocketType(socket_type).name if socket_type in set(SocketType) else str(socket_type)
            wanted = ", ".join(sorted(t.name for t in self.peer_types))
            raise HandshakeError(
                "socket_type",
                f"a {self.socket_type.name} cannot talk to a {name}",
                hint=f"its peers are {wanted}",
            )

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        """Adds a peer. Returns the peer that it replaces (same identity), or None.

        Raises HandshakeError if the peer may not be attached; nothing has changed then.
        """
        self.check(socket_type, identity)
        self.peers[peer] = socket_type
        return None

    def detach(self, peer: Peer) -> bool:
        """Removes a peer. False: it was not attached."""
        return self.peers.pop(peer, None) is not None

    def holder(self, identity: bytes) -> Peer | None:
        """Returns the peer with this identity, for patterns that use identities."""
        return None

    def inherit(self, heir: Peer, peer: Peer) -> None:
        """Makes `heir` deliver the unread messages of the lost `peer`. Called before `detach(peer)`."""

    def routes_alone(self) -> dict[bytes, Peer] | None:
        """Returns the peers by identity, as they are at any time, if the core may send and receive plain
        messages of those with a `plain_identity`; None: each message needs this object."""
        return None

    def plain_identity(self, peer: Peer) -> bytes | None:
        """Returns what the core puts before the peer's messages; None: they need this object."""
        return None

    def preferred(self) -> Iterable[Peer]:
        """Returns the peers to offer the next message, the best first; empty: the core chooses."""
        return ()

    def fail(self, peer: Peer, error: BaseException, moved: Collection[int] = ()) -> bool:
        """Handles the loss of a peer. Returns True if a reply cannot arrive any more. moved: the numbers of
        requests that had not left for it, and go to another peer."""
        return False

    def has_open(self, peer: Peer) -> bool:
        """Whether a request to this peer waits for its reply."""
        return False

    def moved(self, peer: Peer, frames: Sequence[OutFrame]) -> None:
        """Records that a message of a lost peer was given to this one."""

    @property
    def failure(self) -> BaseException | None:
        """The error if the expected reply cannot arrive any more."""
        return None

    # -- messages ------------------------------------------------------------------------------

    def may_send(self) -> bool:
        """Whether a send is legal now (not whether there is room)."""
        return self.send_mode is not SendMode.NONE

    def may_receive(self) -> bool:
        """Whether a receive is legal now (not whether a message is available)."""
        return self.receive_mode is not ReceiveMode.NONE

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        """Returns (the target, the frames to send).

        The target is `ANYONE` (the core chooses), a peer, or None: the message is dropped and counted
        already. Raises StateError, Unroutable, NotSupported.
        """
        if self.send_mode is SendMode.NONE:
            raise NotSupported(f"a {self.socket_type.name} only receives")
        return ANYONE, frames

    def sent(self, peer: Peer, now: int = 0) -> None:
        """Records that `peer` took the message of the last `route` at `now` (ns)."""

    def expect(self) -> None:
        """Begins a receive. Raises StateError, NotSupported, or the error of an earlier loss."""
        if self.receive_mode is ReceiveMode.NONE:
            raise NotSupported(f"a {self.socket_type.name} only sends")

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        """Returns the message as the caller receives it, or None: it was dropped and counted."""
        return frames

    def unadmit(self, frames: Admitted) -> Any:
        """Makes the last message of `admit` unread and gives its turn back. Returns the state that `readmit`
        needs."""
        return None

    def readmit(self, frames: Admitted, state: Any) -> bool:
        """Receives the unread message again. False: it was dropped and counted."""
        return True

    def withdraw(self, peer: Peer, frames: Sequence[InFrame]) -> None:
        """Forgets this message, whether or not `admit` had it: it is received again from the start."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts dropped messages. `reason` is a constant word, used as a metric label."""
        if count:
            self.drops[reason] = self.drops.get(reason, 0) + count
