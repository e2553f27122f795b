"""Lost connections: their messages go to another peer, or are counted and reported."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.patterns import Requester
from transfer.patterns.base import SendMode
from transfer.sockets import drain
from transfer.sockets.connections import refusal
from transfer.sockets.connections.orphans import Orphan, Orphans
from transfer.sockets.connections.unread_messages import UnreadMessages
from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Endpoint, Peer
from transfer.transports.core.wire import Control, Flag, SocketType
from transfer.transports.errors import (
    Broken,
    Closed,
    MessageRefused,
    ProtocolError,
    without_frames,
)
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.connections.credits import Credits
    from transfer.sockets.connections.log_reader import LogReader
    from transfer.sockets.connections.no_peer import NoPeer
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket

logger = logging.getLogger("transfer")

_Left = TypeVar("_Left")

#: seconds that another thread may take to count what it has read from a lost peer
_READING = 1.0
_REFUSED = bytes([Control.REFUSED])
#: bytes that are still read from a connection which the peer has given up
_MOST_LEFT = 64 << 20


class ConnectionLoss:
    """Handles the end of a connection, in the thread that finds it."""

    def __init__(
        self,
        state: ConnectionState,
        no_peer: NoPeer,
        credits: Credits,
        log_reader: LogReader,
        orphans: Orphans,
    ) -> None:
        self._state, self._no_peer, self._credits = state, no_peer, credits
        self._log_reader, self._orphans = log_reader, orphans
        self._pattern, self._context, self._lock = state.pattern, state.context, state.lock

    def lost(self, stream: Any, error: BaseException) -> bool:
        """Handles the end of a stream. Any thread, any number of times. False: it is known already."""
        return uninterrupted(partial(self._lost, stream, without_frames(error)), True)

    def _lost(self, stream: Any, error: BaseException) -> bool:
        with self._orphans.in_order():
            return self._lost_in_order(stream, error)

    def _lost_in_order(self, stream: Any, error: BaseException) -> bool:
        with self._lock:
            if isinstance(stream, UnreadMessages):
                self._pattern.fail(stream, error)
                self._pattern.detach(stream)
            peer = None if self._state.closing else self._state.remove(stream)
            if peer is None:  # `close` handles the rest
                return False
            self._state.ending_peers.append(peer)
            self._state.losses += 1
            peer.loss = self._state.losses
            self._state.unwatch(peer)
        socket = self._state.socket()
        try:
            self._keep_unread(socket, peer, error)
            error = self._reason_of(peer, error)
        finally:
            with self._lock:
                self._state.ending_peers.remove(peer)
                self._state.changed.notify_all()
        unsent, count = self._take_unsent(peer)
        unconfirmed = max(0, stream.sent - count - stream.confirmed) if peer.confirms else 0
        stream.close()
        self._context.tally.peer_ended(self._pattern.socket_type.name, peer)
        self._state.count("disconnected")
        if isinstance(error, MessageRefused) and unconfirmed > 1 and not peer.retained:
            text = "%s: %d messages behind the refused one may be lost; the option resend sends them again"
            self._state.throttled.log(logging.WARNING, "behind", text, peer.endpoint, unconfirmed - 1)
        self._settle(peer, unsent, count, error)
        if unconfirmed:
            self._state.count("unconfirmed", unconfirmed)
        self._reconnect(peer)
        if peer.source.follower is not None:
            peer.source.follower.ended(peer.source)
        self._orphans.give()
        if socket is not None:
            socket._update_fast_paths()
        with self._lock:
            self._state.changed.notify_all()
        if socket is not None and not socket.closed:
            socket._notify()
            if self._pattern.failure is not None:
                # Notify again from another thread: a receiving call that found the loss clears its own
                # notification, and an event loop must see that there is an error to fetch.
                self._context.reactor.call_soon(self._state.notify)
        self._announce(peer, error, unconfirmed, len(unsent))
        return True

    def send_refusal(self, stream: Any, error: ProtocolError, *, taken: bool = False) -> None:
        """Tells a peer why its connection ends. taken: its message was counted before it was decoded."""
        peer = self._state.peers.get(stream)
        if peer is not None and peer.agreement is not None and not peer.agreement.plain:
            refusal.send(stream, error, taken)

    def _keep_unread(self, socket: Socket | None, peer: Peer, error: BaseException) -> None:
        """Replaces the stream of a lost peer by its unread messages (`UnreadMessages`)."""
        stream = peer.stream
        if socket is not None:
            socket._detach(stream)
        remnant = self._take_from_lost(peer, lambda: self._rescue(peer, error))
        with self._lock:
            if remnant is not None and self._holds_reply(remnant):
                self._pattern.inherit(remnant, stream)
            self._pattern.detach(stream)
        if self._state.upstream is not None:
            self._state.upstream.deliver()
        if remnant is not None and socket is not None:
            self._state.attach(socket, remnant, sends=False)

    def _take_from_lost(self, peer: Peer, take: Callable[[], _Left]) -> _Left | None:
        """Takes what a lost peer left. None: that failed, and the connection ends all the same."""
        # Another thread may have read a credit and not counted it yet: its messages would seem lost.
        [held] = map(peer.reading.acquire, (True,), (_READING,))  # no signal handler runs before `try`
        try:
            return take()
        except Exception:
            logger.exception("what the connection to %s left is lost", peer.address)
            return None
        finally:
            if held:
                peer.reading.release()

    def _rescue(self, peer: Peer, error: BaseException) -> UnreadMessages | None:
        """Reads what the peer sent before its end, since a send may have found the end."""
        if isinstance(error, ProtocolError) or peer.pending:
            return None
        received = []
        # A peer that still sends could do so without end. The rest counts as unconfirmed at its side.
        ended = peer.ended or peer.stream.broken is not None
        most = math.inf if ended else peer.stream.received_bytes + _MOST_LEFT
        try:
            while peer.stream.received_bytes < most and (frames := peer.stream.receive()) is not None:
                received.append(frames)
                if frames[0].flags & Flag.CONTROL:
                    self._credits.credited(peer, frames[0])
                    if frames[0].data[:1] == _REFUSED:
                        self._credits.refused(peer, bytes(frames[0].data))
        except (Broken, ProtocolError, Closed) as end:
            without_frames(end)
            logger.debug("the connection to %s has been read to its end", peer.address)
        found = [
            one for one in received if not one[0].flags & Flag.CONTROL and self._log_reader.is_subscribed(one)
        ]
        if self._pattern.answers:  # the requester is gone, its reply has no receiver
            self._pattern.drop("requester_gone", len(found))
            return None
        for frames in received if self._log_reader.positions is not None else ():
            self._log_reader.read_late(peer, frames)
        return UnreadMessages(found, peer) if found and self._state.receives else None

    def is_lost(self, peer: Peer, there: bool) -> bool:
        """Whether a peer that confirms may not get all that was written to it. Used when the socket closes,
        after `drain.finish`. Reads the credits that the peer has sent.

        there: it had not ended before. If the kernel still has data for it then, its next credit meets a
        closed connection, and the kernel drops that data.
        """
        stream = peer.stream
        if not peer.confirms or stream.sent == stream.confirmed:
            return False
        if there and not peer.foreign and not stream.by_rdma:
            if not drain.may_be_lost(peer.fd):
                return False
        elif stream.broken is None and not drain.has_ended(peer.fd):
            return False
        peer.ended = True
        if self._context.reactor.in_loop():  # the socket may have been dropped during a read of this thread
            return True
        if peer.foreign:
            with suppress(Broken, ProtocolError):
                for frame in stream.control_ready():
                    self._credits.credited(peer, frame)
        self._take_from_lost(peer, lambda: self._rescue(peer, Closed("the socket is closed")))
        return True

    def count_unconfirmed(self, peer: Peer, unsent: int) -> int:
        """Counts the messages that a peer had been given and did not confirm, when the socket closes."""
        if count := max(0, int(peer.stream.sent - unsent - peer.stream.confirmed)):
            self._state.count("unconfirmed", count)
            self._state.emit(EventKind.UNCONFIRMED, peer.endpoint, peer.address, count=count)
            text = "%s: %d messages are unconfirmed at the close and may be lost; a longer linger waits"
            self._state.throttled.log(logging.INFO, "closed", text, peer.address or peer.endpoint, count)
        return count

    def _holds_reply(self, remnant: UnreadMessages) -> bool:
        """Whether a REQ finds its reply in the unread messages; if not, its request has failed."""
        pattern = self._pattern
        return not isinstance(pattern, Requester) or remnant.holds(pattern.waiting)

    def _settle(self, peer: Peer, unsent: list[list[OutFrame]], count: int, error: BaseException) -> None:
        """Decides about every message that the lost peer had not confirmed.

        The last `count` messages of the stream were not sent; `unsent` has those that may go to other peers.
        """
        first = peer.stream.sent - count + 1
        kept = self._pattern.send_mode is SendMode.ROUND_ROBIN and not isinstance(self._pattern, Requester)
        left: list[Orphan] = []

        def orphan(number: int, frames: list[OutFrame]) -> Orphan:
            return Orphan(frames, trackers.pop(number, None), peer.loss, number)

        with self._lock:  # a thread that notes a message later finds it in `moved`
            peer.settle(first)
            trackers = dict(peer.trackers)
            if kept:
                refused = peer.refusal[1] if peer.refusal is not None else 0
                left = [orphan(n, frames) for n, frames in peer.retained if n < first and n != refused]
                if len(left) < sum(n < first for n, _ in peer.retained):
                    self._pattern.drop("refused")  # it would be refused again, for ever
                self._state.count("resent", len(left))
                moved = [orphan(n, frames) for n, frames in enumerate(unsent, first)]
                peer.moved = {orphan.number: orphan for orphan in moved if orphan.tracker is None}
                self._state.count("redistributed", len(moved))
                if self._pattern.ordered:
                    self._pattern.fail(peer.stream, error, {orphan.frames[0][1] for orphan in left + moved})
                # They are older than those that wait.
                self._orphans.messages.extendleft(reversed(left + moved))
        if isinstance(self._pattern, Requester):
            self._settle_request(self._pattern, peer, unsent, error)
        dropped = count - len(unsent)
        if dropped and not isinstance(self._pattern, Requester):
            self._pattern.drop("peer_gone", dropped)
        others = error
        if isinstance(error, MessageRefused) and peer.refusal is not None:
            refused_tracker = trackers.pop(peer.refusal[1], None)
            if refused_tracker is not None:
                refused_tracker._fail(error)
            others = Broken(f"the peer ended the connection for an earlier message: {error.reason}")
        for tracker in trackers.values():
            tracker._fail(others)
        peer.part()

    def _settle_request(
        self, pattern: Requester, peer: Peer, unsent: list[list[OutFrame]], error: BaseException
    ) -> None:
        """Gives a request that never left to another peer. One that did left fails, or is sent again."""
        if not pattern.waiting or pattern.peer is not peer.stream:
            return
        request = next((frames for frames in unsent if frames[0][1] == pattern.waiting), None)
        refused = peer.refusal is not None and peer.refusal[1] > 0
        if request is None and peer.retained and not refused:
            request = peer.retained[-1][1]
            self._state.count("resent")
        if request is None:
            pattern.fail(peer.stream, error)
        else:
            pattern.peer = None
            self._orphans.messages.append(Orphan(request, None))

    def _reconnect(self, peer: Peer) -> None:
        record = peer.source
        if record.connector is None:
            return
        if record.caught_up:
            record.caught_up = False
            record.last_seen = peer.stream.last_received_ns / 1e9
        if record.queue is peer:
            record.queue = None
        if record.peer is peer:
            record.peer = None
            if record not in self._state.endpoints:  # disconnected: a new queue would lose messages
                return
            record.since = time.monotonic()
            self.queue_for(record)
            record.connector.lost()

    def _reason_of(self, peer: Peer, error: BaseException) -> BaseException:
        """The reason that the peer gave for the end of its connection, if it gave one."""
        found = None if isinstance(error, ProtocolError) else refusal.error_of(peer.refusal)
        if found is None:
            return error
        found.__cause__ = error
        text = str(found).replace("\n  hint:", ";")
        self._state.throttled.log(logging.WARNING, "refused", "%s: %s", peer.endpoint, text)
        return found

    def _announce(self, peer: Peer, error: BaseException, unconfirmed: int, unsent: int) -> None:
        where = (peer.endpoint, peer.address)
        if isinstance(error, ProtocolError):
            text = "the connection to %s was ended: %s"
            said = str(error).replace("\n  hint:", ";")
            self._state.throttled.log(
                logging.WARNING, error.reason, text, peer.address or peer.endpoint, said
            )
            self._state.count(f"protocol:{error.reason}")
            self._state.emit(EventKind.PROTOCOL_FAILED, *where, error.reason, error=error)
        if unconfirmed:
            self._state.emit(EventKind.UNCONFIRMED, *where, count=unconfirmed, error=error)
        if unsent and self._pattern.send_mode is SendMode.ROUND_ROBIN:
            self._state.emit(EventKind.REDISTRIBUTED, *where, count=unsent)
        self._state.emit(EventKind.DISCONNECTED, *where, error=error)

    def _take_unsent(self, peer: Peer) -> tuple[list[list[OutFrame]], int]:
        """Takes what the peer's stream had not begun to send, copied to memory of the core, if it may go to
        other peers. Returns it and the number of messages that the stream had not begun."""
        stream = peer.stream
        if self._pattern.send_mode is not SendMode.ROUND_ROBIN:
            return [], stream.drop_unsent()
        for _, tracker in list(peer.trackers):  # `_settle` decides about them
            tracker._rescue()
        unsent = self._take_from_lost(peer, stream.take_unsent)
        return ([], stream.drop_unsent()) if unsent is None else (unsent, len(unsent))

    # -- queues of endpoints without a connection ---------------------------------------------------

    def queue_for(self, record: Endpoint) -> None:
        """Queues messages until the endpoint is connected (lazy connect)."""
        socket = self._state.socket()
        if socket is None or socket.immediate or self._pattern.send_mode is not SendMode.ROUND_ROBIN:
            return
        if record.follower is not None:  # members share the queue of their endpoint
            return
        expected = min(self._pattern.peer_types)
        with self._lock:
            if (
                self._state.closing
                or record.queue is not None
                or record not in self._state.endpoints
                or (self._pattern.socket_type is SocketType.PAIR and self._pattern.peers)
            ):
                return
            stream = self._state.new_stream(socket, -1)
            peer = Peer(stream, record, expected)
            stream.peer = peer
            self._pattern.attach(stream, expected)
            self._state.add(peer)
            record.queue = peer
        self._state.attach(socket, stream)
        self._no_peer.watch_queue(record, socket._long_wait / 1000)
        self._orphans.give()
        socket._update_fast_paths()

    def take_queue(self, record: Endpoint) -> None:
        """Moves the queue of an endpoint that stands for many to its connected members."""
        with self._orphans.in_order():
            with self._lock:
                queue, record.queue = record.queue, None
                if queue is None or queue.stream not in self._state.peers:
                    return
                self._pattern.detach(queue.stream)
            socket = self._state.socket()
            if socket is not None:
                socket._detach(queue.stream)
            self.hand_over(queue)
            self._orphans.give()
            if socket is not None:
                socket._update_fast_paths()

    def hand_over(self, queue: Peer) -> None:
        """Moves the queue to a connection that brought its own stream (inproc)."""
        stream = queue.stream
        with self._lock:
            self._state.remove(stream)
            self._state.losses += 1
            queue.loss = self._state.losses
        self._settle(queue, *self._take_unsent(queue), Broken("the queue was closed"))
        stream.close()
