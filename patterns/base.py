"""What every pattern is: a small class over opaque peers.

A *peer* is any hashable object (in the product: a stream). A frame to send is the core's tuple
`(flags, sequence, topic, meta, data)`; a frame that arrived has `.data`, `.sequence`, `.flags`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Protocol

from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError, NotSupported
from transfer.transports.turn import Turn

Peer = Hashable
OutFrame = tuple[int, int, bytes | None, bytes | None, Any]


class InFrame(Protocol):
    """The part of the core's `Frame` that patterns look at."""

    data: Any
    sequence: int
    topic: bytes | None


#: what `admit` returns: frames as they came, and parts that the pattern put before them
Admitted = Sequence[InFrame | bytes]


class SendMode(IntEnum):
    """How the core distributes what is sent (the numbers of `core_contract.pyi`)."""

    NONE = 0
    ROUND_ROBIN = 1
    FANOUT = 2


class ReceiveMode(IntEnum):
    """How the core gathers what arrives."""

    NONE = 0
    FAIR = 1
    FILTERED = 2


class Anyone:
    """The target of a message that the distributor may give to whom it likes."""

    def __repr__(self) -> str:
        return "ANYONE"


ANYONE = Anyone()


class Pattern:
    """The state of one socket of one type. Not thread-safe by itself: every method is short and
    never waits, and its caller holds the interpreter's lock or a lock of its own."""

    socket_type: ClassVar[SocketType]
    #: socket types that may be on the other end
    peer_types: ClassVar[frozenset[SocketType]]
    send_mode: ClassVar[SendMode] = SendMode.NONE
    receive_mode: ClassVar[ReceiveMode] = ReceiveMode.NONE
    #: True: every call needs this object (an order of calls, an envelope); False: the core alone
    #: does the common case
    ordered: ClassVar[bool] = False
    #: the receiving side tells how much it consumed, so that the sender knows what a death cost
    confirms: ClassVar[bool] = False
    #: what is received are requests: of no use any more when their peer is lost
    answers: ClassVar[bool] = False
    #: calls take turns, one request at a time: `turn` is the core's as well
    in_turns: ClassVar[bool] = False

    #: whose turn it is, or what counts the round trips of requests
    turn: Turn | None = None

    def __init__(self) -> None:
        self.peers: dict[Peer, SocketType] = {}
        #: messages dropped, by reason: a constant word
        self.drops: dict[str, int] = {}

    @classmethod
    def modes(cls) -> tuple[int, int, int]:
        """The socket type and how it sends and receives, as the core's numbers."""
        return int(cls.socket_type), int(cls.send_mode), int(cls.receive_mode)

    # -- peers ---------------------------------------------------------------------------------

    def check(self, socket_type: int, identity: bytes = b"") -> None:
        """Whether a peer of this type may be attached now. Raises HandshakeError."""
        if socket_type not in self.peer_types:
            name = SocketType(socket_type).name if socket_type in set(SocketType) else str(socket_type)
            wanted = ", ".join(sorted(t.name for t in self.peer_types))
            raise HandshakeError(
                "socket_type",
                f"a {self.socket_type.name} cannot talk to a {name}",
                hint=f"its peers are {wanted}",
            )

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        """A peer is there. Returns the peer that it replaces (same identity), or None.

        Raises HandshakeError when it may not be attached; nothing has changed then.
        """
        self.check(socket_type, identity)
        self.peers[peer] = socket_type
        return None

    def detach(self, peer: Peer) -> bool:
        """The peer is gone. False if it was not attached."""
        return self.peers.pop(peer, None) is not None

    def holder(self, identity: bytes) -> Peer | None:
        """The peer that messages for this identity go to, where identities count."""
        return None

    def inherit(self, heir: Peer, peer: Peer) -> None:
        """`heir` hands out what `peer`, who is lost, had sent. Called before `detach(peer)`."""

    def preferred(self) -> Iterable[Peer]:
        """Who should be offered the next message, the best first; nothing: the distributor chooses."""
        return ()

    def fail(self, peer: Peer, error: BaseException, moved: Collection[int] = ()) -> bool:
        """The peer is lost. True if a reply cannot come for that. moved: the numbers of requests that had not
        left for it, and go to another."""
        return False

    def has_open(self, peer: Peer) -> bool:
        """Whether a reply of this peer is waited for."""
        return False

    def moved(self, peer: Peer, frames: Sequence[OutFrame]) -> None:
        """A message that a lost peer had was given to this one."""

    @property
    def failure(self) -> BaseException | None:
        """Why a reply that is waited for cannot come."""
        return None

    # -- messages ------------------------------------------------------------------------------

    def may_send(self) -> bool:
        """Whether a send is legal now (not whether there is room)."""
        return self.send_mode is not SendMode.NONE

    def may_receive(self) -> bool:
        """Whether a receive is legal now (not whether something is there)."""
        return self.receive_mode is not ReceiveMode.NONE

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        """(whom to give it, the frames as they travel).

        The target is `ANYONE` (the distributor's choice), a peer, or None: drop it, it is counted
        already. Raises StateError, Unroutable, NotSupported.
        """
        if self.send_mode is SendMode.NONE:
            raise NotSupported(f"a {self.socket_type.name} only receives")
        return ANYONE, frames

    def sent(self, peer: Peer, now: int = 0) -> None:
        """The message of the last `route` went to `peer`, at `now` (ns). Called only after it was taken."""

    def expect(self) -> None:
        """A receive begins. Raises StateError, NotSupported, or what an earlier loss left behind."""
        if self.receive_mode is ReceiveMode.NONE:
            raise NotSupported(f"a {self.socket_type.name} only sends")

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        """The message as the caller sees it, or None: it was dropped and counted."""
        return frames

    def unadmit(self, frames: Admitted) -> Any:
        """What `admit` returned last is unread again: the turn it took is given back. What `readmit`
        has to know of it."""
        return None

    def readmit(self, frames: Admitted, state: Any) -> bool:
        """The unread message is received now. False: it was dropped and counted."""
        return True

    def withdraw(self, peer: Peer, frames: Sequence[InFrame]) -> None:
        """This message, which `admit` has seen or not yet, is received again from the start."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts dropped messages. `reason` is a constant word, used as a metric label."""
        if count:
            self.drops[reason] = self.drops.get(reason, 0) + count
