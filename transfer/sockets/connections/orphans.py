"""Messages that wait for a peer: those of lost connections go to another one, before newer messages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.patterns import Requester
from transfer.patterns.base import SendMode
from transfer.sockets.peer import LostPeer, Peer
from transfer.sockets.tracker import Tracker
from transfer.transports.errors import Again, Broken, Closed
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.connections.credits import Credits
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket

#: seconds that a call waits for the thread that offers orphans
_GIVING = 1.0
#: seconds until messages of a lost peer are offered again after no peer had room
_RETRY = 0.01


def closed_by_us(what: str) -> Closed:
    """The error of a tracker whose socket this program closed, before `what`."""
    return Closed(
        f"this program closed the socket before {what}",
        hint="call wait_confirmed() before close(); close(linger=MILLISECONDS) waits for unsent messages",
    )


@dataclass(slots=True, eq=False)
class Orphan:
    """A message for a peer that was lost. loss: the number of that loss. number: the message's number in that
    peer's stream. fresh: no stream has had it, so that it does not count as sent. taken: the stream that took
    it, and its number there."""

    frames: list[OutFrame]
    tracker: Tracker | None
    loss: int = 0
    number: int = 0
    fresh: bool = False
    taken: tuple[Any, int] | None = None


class Orphans:
    """The messages of lost peers, and the records of sent ones (`note`) that decide what a loss means."""

    def __init__(self, state: ConnectionState, credits: Credits) -> None:
        self._state, self._credits = state, credits
        self._pattern, self._lock = state.pattern, state.lock
        #: those that wait, the oldest first; new messages go behind them
        self.messages: deque[Orphan] = deque()
        #: held by the thread that offers them to peers
        self._giving = threading.Lock()
        #: threads that have taken messages out of a stream, and put them neither into another nor here yet
        self._moves = 0

    @property
    def waiting(self) -> bool:
        """Whether messages wait, or are between two streams. Under the lock."""
        return bool(self._moves or self.messages)

    def take_all(self) -> list[Orphan]:
        """Removes those that wait, and returns them. Under the lock."""
        taken = list(self.messages)
        self.messages.clear()
        return taken

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Makes new messages wait while the body moves messages from one stream to another."""
        with self._lock:
            self._moves += 1
        self.update_order()
        try:
            yield
        finally:
            with self._lock:
                self._moves -= 1
                self._state.changed.notify_all()
            self.update_order()

    @property
    def moving(self) -> bool:
        """Whether a message of a lost connection is between two lists."""
        return self._moves > 0

    def wait_for_moves(self) -> bool:
        """Waits until none is, when the socket closes. False: it took too long, or this is the reactor's own
        thread, which does not wait."""
        if self._state.context.reactor.in_loop():
            return False
        return self._state.changed.wait_for(lambda: not self._moves, _GIVING)

    def update_order(self) -> None:
        """Makes new messages wait while older ones are left. Call it when that may change."""
        socket = self._state.socket()
        if socket is None or self._pattern.send_mode is not SendMode.ROUND_ROBIN:
            return
        with self._lock:
            behind = self.waiting and not socket.conflate
            freed = socket._behind and not behind
            socket._behind = behind
        if freed and not socket.closed:
            socket._notify()

    @contextmanager
    def offers_blocked(self) -> Iterator[None]:
        """Keeps other threads from offering orphans. It never blocks inside."""
        held = self._giving.acquire(timeout=_GIVING)
        try:
            yield
        finally:
            if held:
                self._giving.release()

    def give(self) -> None:
        """Offers the messages of lost peers to peers with room, in order. One thread at a time."""
        if self.messages:
            uninterrupted(self._give_all, None)

    def _give_all(self) -> None:
        socket = self._state.socket()
        if socket is None or not self.messages or not self._giving.acquire(blocking=False):
            return
        try:
            while self._give_oldest(socket):
                pass
        finally:
            self._giving.release()
        self.update_order()

    def _give_oldest(self, socket: Socket) -> bool:
        """Offers the oldest orphan. False: there is none, or no peer has room for it."""
        with self._lock:
            if not self.messages or not self._state.peers or socket.closed or self._state.closing:
                return False
            orphan = self.messages[0]
            losses = self._state.losses
        # The core owns this memory: the sender may have changed its memory since.
        taken, frames = partial(self._given, orphan), orphan.frames
        try:
            stream = socket._send_frames(
                frames, 0, hold=True, taken=taken, first=True, again=not orphan.fresh
            )
        except (Again, Closed):
            if losses != self._state.losses:  # messages of that connection go before this one
                return True
            self._state.later("orphans", _RETRY, self.give)
            return False
        with self._lock, suppress(ValueError):  # `send_newest` may have dropped it
            self.messages.remove(orphan)
        self._pattern.moved(stream, frames)
        return True

    def _given(self, orphan: Orphan, stream: Any, number: int) -> None:
        with self._lock:
            orphan.taken = stream, number
            frames, tracker = orphan.frames, orphan.tracker
            orphan.frames = []
        self.note(frames, tracker, stream, number, again=True)

    def send_newest(self, frames: Sequence[OutFrame], released: Any, taken: Any) -> Any:
        """Sends the message now, or keeps it instead of the one that was kept before (conflate).

        Returns the stream that took it (a count for a fan-out), or None if it waits here.
        """
        socket = self._state.socket()
        assert socket is not None
        with self.offers_blocked():
            with self._lock:
                self._pattern.drop("conflated", len(self.messages))
                self.messages.clear()
            try:
                return socket._send_frames(frames, 0, released=released, taken=taken, first=True)
            except Again:
                kept = [(*frame[:4], bytes(frame[4])) for frame in frames]
                with self._lock:
                    self.messages.append(Orphan(kept, None, fresh=True))
                if self._state.peers:
                    self._state.later("orphans", _RETRY, self.give)
                return None

    def note(
        self,
        frames: Sequence[OutFrame] | None,
        tracker: Tracker | None,
        stream: Any,
        number: int,
        again: bool = False,
    ) -> None:
        """Records that a stream has a message, for its tracker and for `resend`.

        number: the message's number in the stream. again: another stream had it before. frames None: the
        message is recorded already, but not its tracker.
        """
        peer = stream.peer
        if tracker is not None and not again:
            tracker._taken(1)
        confirmable = peer.confirms or peer.pending or isinstance(self._pattern, Requester)
        socket = self._state.socket()
        resend = frames is not None and socket is not None and socket.resend
        if peer.note(number, tracker if confirmable else None, list(frames or ()) if resend else None):
            if tracker is not None and not confirmable:
                tracker._not_confirmable()
            if peer.confirms:
                self._credits.await_credits()
            peer.confirm(stream.confirmed)  # its credit may have arrived before this was recorded
        elif self._follow(tracker, peer, number) or (
            resend and self._resend(frames or (), tracker, peer, number)
        ):
            return
        elif tracker is not None:
            gone = Broken("the peer disconnected at once")
            tracker._fail(closed_by_us("the peer confirmed it") if self._state.closing else gone)

    def _follow(self, tracker: Tracker | None, peer: Peer | LostPeer, number: int) -> bool:
        """Handles a loss between the send and its record. If the message had not left, the tracker goes with
        it to another peer: True."""
        with self._lock:
            orphan = peer.moved.pop(number, None)
            if orphan is None:
                return False
            if tracker is not None:
                tracker._rescue()
            orphan.tracker = tracker
            taken = orphan.taken
        if taken is not None and tracker is not None:
            self.note(None, tracker, *taken, again=True)
        return True

    def _resend(
        self, frames: Sequence[OutFrame], tracker: Tracker | None, peer: Peer | LostPeer, number: int
    ) -> bool:
        """Handles a loss between the send and its record, after the peer's other messages were offered to
        other peers: offers this one too. False: it had not left, and was among those."""
        kept = self._pattern.send_mode is SendMode.ROUND_ROBIN and not isinstance(self._pattern, Requester)
        if peer.settled is None or number >= peer.settled or not kept:
            return False
        with self.in_order(), self._lock:
            self._put_back(Orphan(list(frames), tracker, peer.loss, number))
        self._state.count("resent")
        self.give()
        return True

    def _put_back(self, orphan: Orphan) -> None:
        """Inserts an orphan before waiting messages, in the order of its stream. Under the lock."""
        its = [i for i, other in enumerate(self.messages) if other.loss == orphan.loss]
        older = sum(self.messages[i].number < orphan.number for i in its)
        at = its[0] + older if its else 0  # they are adjacent
        self.messages.insert(at, orphan)
