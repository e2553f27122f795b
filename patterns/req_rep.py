"""REQ and REP: one request, then its reply.

On the wire a request carries its number in the header's sequence field and no envelope, and the
reply carries the same number. A DEALER as the requester's peer writes ZeroMQ's envelope itself
(parts up to the first empty one), which REP keeps and puts before its reply.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from transfer.patterns.base import (
    ANYONE,
    Admitted,
    Anyone,
    InFrame,
    OutFrame,
    Pattern,
    Peer,
    ReceiveMode,
    SendMode,
)
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, MessageRefused, StateError
from transfer.transports.req_rep_turn import Turn

#: set in the number of a request whose sender wants it in the envelope that a ROUTER shows (ZeroMQ's
#: REQ_CORRELATE); below the sign bit, so that every language can represent it
CORRELATED = 1 << 62


class Requester(Pattern):
    """Sends a request, then waits for its reply. The loss of the peer fails the request at once."""

    socket_type = SocketType.REQ
    peer_types = frozenset({SocketType.REP, SocketType.ROUTER})
    send_mode = SendMode.ROUND_ROBIN
    receive_mode = ReceiveMode.FAIR
    ordered = True
    in_turns = True

    def __init__(self) -> None:
        super().__init__()
        #: the core takes the common turn alone and writes its steps here
        self.turn: Turn = Turn()
        self._next = 0

    @property
    def waiting(self) -> int:
        """The number of the request that waits for its reply; 0: none does."""
        return self.turn.number

    @waiting.setter
    def waiting(self, number: int) -> None:
        self.turn.number = number

    @property
    def peer(self) -> Peer | None:
        """The peer that has the open request."""
        peer: Peer | None = self.turn.stream
        return peer

    @peer.setter
    def peer(self, peer: Peer | None) -> None:
        self.turn.stream = peer

    @property
    def failure(self) -> BaseException | None:
        """The error if no reply can arrive any more."""
        return self.turn.failure

    @failure.setter
    def failure(self, error: BaseException | None) -> None:
        self.turn.failure = error

    @property
    def relaxed(self) -> bool:
        """Whether a new request may replace an unanswered one."""
        return self.turn.relaxed

    @relaxed.setter
    def relaxed(self, value: bool) -> None:
        self.turn.relaxed = value

    @property
    def correlate(self) -> bool:
        """Whether a ROUTER's envelope shows the number."""
        return self.turn.mark == CORRELATED

    @correlate.setter
    def correlate(self, value: bool) -> None:
        self.turn.mark = CORRELATED if value else 0

    def may_send(self) -> bool:
        return not self.waiting or self.relaxed

    def may_receive(self) -> bool:
        return bool(self.waiting)

    def begin(self) -> int:
        """Returns the number of the request to send. Raises StateError while another one waits."""
        if self.turn.number and not self.turn.relaxed:
            raise StateError(
                "this REQ waits for the reply to its last request",
                hint="receive the reply first; req_relaxed = True lets a new request replace it",
            )
        last = self.turn.last + 1
        self.turn.last = last
        self._next = last | self.turn.mark
        self.turn.pending = self._next
        return self._next

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        number = self.begin()
        return ANYONE, [(flags, number, topic, meta, data) for flags, _, topic, meta, data in frames]

    def sent(self, peer: Peer, now: int = 0) -> None:
        self.turn.asks(peer, self._next, now)
        if peer not in self.peers:  # it disconnected after the write
            self.fail(peer, Broken("the peer disconnected before it could reply"))

    def expect(self) -> None:
        if not self.waiting:
            raise StateError("this REQ has sent no request", hint="send one first")
        failure = self.turn.gives_up()
        if isinstance(failure, MessageRefused):
            raise MessageRefused(failure.reason, hint=failure.hint) from failure
        if failure is not None:
            raise Broken(
                "the peer disconnected before it replied to this request",
                hint="send it again if it may be done twice; resend = True does so by itself",
            ) from failure

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        if self.turn.answers(peer, frames[0].sequence):
            return frames
        self.drop("late_reply")
        return None

    def unadmit(self, frames: Admitted) -> Any:
        self.waiting = _number_of(frames)
        return None

    def readmit(self, frames: Admitted, state: Any) -> bool:
        if self.waiting != _number_of(frames):  # a new request replaced this one
            self.drop("late_reply")
            return False
        self.waiting = 0
        self.failure = None
        return True

    def withdraw(self, peer: Peer, frames: Sequence[InFrame]) -> None:
        if not self.waiting:
            self.waiting = frames[0].sequence

    def inherit(self, heir: Peer, peer: Peer) -> None:
        if self.waiting and self.peer is peer:
            self.peers[heir] = self.peers[peer]
            self.peer = heir

    def fail(self, peer: Peer, error: BaseException, moved: Collection[int] = ()) -> bool:
        return self.turn.fails(peer, error)

    def has_open(self, peer: Peer) -> bool:
        return bool(self.waiting) and self.peer is peer

    def moved(self, peer: Peer, frames: Sequence[OutFrame]) -> None:
        self.peer = peer


class Replier(Pattern):
    """Receives a request, then sends the reply to that requester only."""

    socket_type = SocketType.REP
    peer_types = frozenset({SocketType.REQ, SocketType.DEALER})
    receive_mode = ReceiveMode.FAIR
    ordered = True
    in_turns = True
    answers = True

    def __init__(self) -> None:
        super().__init__()
        #: the core takes the common turn alone and writes its steps here
        self.turn: Turn = Turn()
        self._envelope: tuple[OutFrame, ...] = ()

    @property
    def peer(self) -> Peer | None:
        """The peer that gets the reply."""
        peer: Peer | None = self.turn.stream
        return peer

    def may_send(self) -> bool:
        return self.turn.open

    def may_receive(self) -> bool:
        return not self.turn.open

    def expect(self) -> None:
        if self.turn.open:
            raise StateError("this REP owes a reply", hint="send it before the next receive")

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        if self.peers.get(peer) is SocketType.DEALER:
            self._envelope, frames = cut_envelope(frames)
            if not self._envelope:
                self.drop("no_envelope")
                return None
            number = 0
        else:
            self._envelope = ()
            number = frames[0].sequence
        # The pattern handles an envelope, not the core.
        self.turn.request_received(peer, number, simple=not self._envelope)
        return frames

    def unadmit(self, frames: Admitted) -> Any:
        asked = self.peer, self.turn.number, self._envelope
        self.turn.open = False
        return asked

    def readmit(self, frames: Admitted, state: Any) -> bool:
        # Another request may have been received and answered since.
        peer, number, self._envelope = state
        self.turn.request_received(peer, number, simple=not self._envelope)
        return True

    def withdraw(self, peer: Peer, frames: Sequence[InFrame]) -> None:
        self.turn.closes(peer)

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        if not self.turn.open:
            raise StateError("this REP has no request to answer", hint="receive one first")
        if self.peer not in self.peers:
            self._envelope = ()
            self.turn.closes(self.peer)
            self.drop("requester_gone")
            return None, frames
        if not self.turn.simple:  # the core does not remove the envelope of an earlier request
            return self.peer, [*self._envelope, *frames]
        number = self.turn.number
        return self.peer, [(flags, number, topic, meta, data) for flags, _, topic, meta, data in frames]

    def sent(self, peer: Peer, now: int = 0) -> None:
        # The next request, with its envelope, may be received once the turn is closed.
        self._envelope = ()
        self.turn.closes(peer)

    def gone(self, peer: Peer | None = None) -> None:
        """Drops and counts a reply whose requester disconnected.

        peer: None for the requester of the last request.
        """
        if self.turn.closes(self.peer if peer is None else peer):
            self.drop("requester_gone")


def _number_of(frames: Admitted) -> int:
    first = frames[0]
    return 0 if isinstance(first, bytes) else first.sequence


def cut_envelope(frames: Sequence[InFrame]) -> tuple[tuple[OutFrame, ...], Sequence[InFrame]]:
    """Splits a message into a DEALER's envelope, as it is sent back, and the rest. The envelope ends with the
    first empty part that another part follows; without such a part it is empty."""
    for index in range(len(frames) - 1):
        if len(frames[index].data) == 0:
            cut = index + 1
            return tuple((0, 0, None, None, bytes(frame.data)) for frame in frames[:cut]), frames[cut:]
    return (), frames
