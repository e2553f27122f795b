"""REQ and REP with many requests open at once, each matched to its reply by its number.

On the wire they are REQ and REP (`patterns/req_rep.py`); a peer sees no difference. `current.number` is the
number of the request that a send is about; where threads send, each has a separate one (`threading.local`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import count
from types import SimpleNamespace
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
from transfer.patterns.req_rep import CORRELATED, cut_envelope
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, StateError
from transfer.transports.req_rep_turn import Turn


class PipelinedRequester(Pattern):
    """Sends requests without waiting for the replies to earlier ones.

    open: the peer of each open request, by its number; None: no peer has it yet. failed: the error of each
    request that cannot have a reply; the caller removes them. turn: counts round trips.
    """

    socket_type = SocketType.REQ
    peer_types = frozenset({SocketType.REP, SocketType.ROUTER})
    send_mode = SendMode.ROUND_ROBIN
    receive_mode = ReceiveMode.FAIR
    ordered = True

    def __init__(self) -> None:
        super().__init__()
        self.turn: Turn = Turn()
        self.open: dict[int, Peer | None] = {}
        self.failed: dict[int, BaseException] = {}
        self.current: Any = SimpleNamespace(number=0)
        self._numbers = count(1)
        self._load: dict[Peer, int] = {}

    def begin(self) -> int:
        """Starts a new request, which becomes the current one, and returns its number."""
        number = next(self._numbers) | CORRELATED  # a ROUTER shows it in its envelope and returns it
        self.open[number] = None
        self.current.number = number
        return number

    def forget(self, number: int) -> bool:
        """Closes a request: a later reply is dropped. False: it was not open."""
        peer = self.open.pop(number, self)
        if peer is self:
            return False
        if peer in self._load:
            self._load[peer] -= 1
        return True

    def has_room(self, most: int) -> bool:
        """Whether fewer than `most` requests are open for each peer. 0: no limit."""
        return not most or len(self.open) < most * max(1, len(self.peers))

    def preferred(self) -> Iterable[Peer]:
        if len(self.peers) < 2:
            return ()
        return sorted(self.peers, key=lambda peer: self._load.get(peer, 0))

    def attach(self, peer: Peer, socket_type: SocketType, identity: bytes = b"") -> Peer | None:
        replaced = super().attach(peer, socket_type, identity)
        self._load[peer] = 0
        return replaced

    def detach(self, peer: Peer) -> bool:
        self._load.pop(peer, None)
        return super().detach(peer)

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        number = self.current.number
        return ANYONE, [(flags, number, topic, meta, data) for flags, _, topic, meta, data in frames]

    def sent(self, peer: Peer, now: int = 0) -> None:
        self.has(peer, self.current.number)

    def has(self, peer: Peer, number: int) -> None:
        """Records that this peer was sent that request."""
        if number not in self.open:  # the reply arrived before this line
            return
        self.open[number] = peer
        if peer in self._load:
            self._load[peer] += 1
        else:  # the peer is gone already
            self._fail(number, Broken("the peer disconnected before it could reply"))

    def moved(self, peer: Peer, frames: Sequence[OutFrame]) -> None:
        self.has(peer, frames[0][1])

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        number = frames[0].sequence
        holder = self.open.get(number, self)
        if holder is not peer and holder is not None:
            self.drop("late_reply")
            return None
        self.forget(number)
        return frames

    def inherit(self, heir: Peer, peer: Peer) -> None:
        self.peers[heir] = self.peers[peer]
        self._load[heir] = 0
        for number, holder in list(self.open.items()):
            if holder is peer:
                self.has(heir, number)

    def fail(self, peer: Peer, error: BaseException, moved: Collection[int] = ()) -> bool:
        known = len(self.failed)
        for number in moved:
            if number in self.open:
                self.open[number] = None
        for number, holder in list(self.open.items()):
            if holder is peer:
                self._fail(number, error)
        return len(self.failed) > known

    def has_open(self, peer: Peer) -> bool:
        return bool(self._load.get(peer))

    def _fail(self, number: int, error: BaseException) -> None:
        if self.forget(number):
            self.failed[number] = error

    @property
    def failure(self) -> BaseException | None:
        return next(iter(self.failed.values()), None)


class PipelinedReplier(Pattern):
    """Receives further requests before earlier ones are answered.

    open: for each request the peer, its number there, and the envelope of a DEALER.
    """

    socket_type = SocketType.REP
    peer_types = frozenset({SocketType.REQ, SocketType.DEALER})
    receive_mode = ReceiveMode.FAIR
    ordered = True
    answers = True

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, tuple[Peer, int, Sequence[OutFrame]]] = {}
        self.current: Any = SimpleNamespace(number=0)
        self._numbers = count(1)

    def may_send(self) -> bool:
        return bool(self.open)

    def admit(self, peer: Peer, frames: Sequence[InFrame]) -> Admitted | None:
        """Makes the request the current one."""
        envelope: Sequence[OutFrame] = ()
        theirs = frames[0].sequence
        if self.peers.get(peer) is SocketType.DEALER:
            envelope, frames = cut_envelope(frames)
            if not envelope:
                self.drop("no_envelope")
                return None
        number = self.current.number = next(self._numbers)
        self.open[number] = peer, theirs, envelope
        return frames

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        asked = self.open.get(self.current.number)
        if asked is None:
            raise StateError("this REP has no such request to answer", hint="receive one first")
        peer, theirs, envelope = asked
        if peer not in self.peers:
            self.gone()
            return None, frames
        if envelope:
            return peer, [*envelope, *frames]
        return peer, [(flags, theirs, topic, meta, data) for flags, _, topic, meta, data in frames]

    def sent(self, peer: Peer, now: int = 0) -> None:
        self.open.pop(self.current.number, None)

    def gone(self, peer: Peer | None = None) -> None:
        """Drops and counts a reply whose requester disconnected."""
        if self.open.pop(self.current.number, None) is not None:
            self.drop("requester_gone")
