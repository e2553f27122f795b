"""The connections of one socket: how they begin, how they end, and what happens to their messages.

All of this is rare: it runs in the reactor's thread, or in the thread that found a connection broken, never
once for each message. `Connections` has the endpoints, and owns one object for each other part: the beginning
of connections, their end, messages that wait for a peer, control frames, credits, limits of queues. The parts
share the data in `state`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.patterns import Requester
from transfer.patterns.base import SendMode
from transfer.sockets import drain
from transfer.sockets.connections.admission import ConnectionAdmission
from transfer.sockets.connections.connection_loss import ConnectionLoss
from transfer.sockets.connections.control import Controls
from transfer.sockets.connections.credits import Credits
from transfer.sockets.connections.dialer import Dialer, handshake_timeout
from transfer.sockets.connections.directory_connector import DirectoryConnector, is_member_of
from transfer.sockets.connections.heartbeats import Heartbeats
from transfer.sockets.connections.log_reader import LogReader
from transfer.sockets.connections.no_peer import NoPeer
from transfer.sockets.connections.orphans import Orphan, Orphans, closed_by_us
from transfer.sockets.connections.queue_limits import QueueLimits
from transfer.sockets.connections.state import ConnectionState, control
from transfer.sockets.connections.topic_positions import TopicPositions, check_begin
from transfer.sockets.directories import open_directory
from transfer.sockets.made_once import made_once
from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Endpoint, Peer, PeerInfo
from transfer.transports import inproc, registry
from transfer.transports.address import Address, parse
from transfer.transports.connect.connection import Connected
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import CREDIT, Control
from transfer.transports.errors import (
    AddressError,
    Broken,
    Closed,
    HandshakeError,
    ProtocolError,
    TransferError,
)
from transfer.transports.handshake.hello import PLACE_TAKEN

if TYPE_CHECKING:
    from transfer.patterns.base import Pattern
    from transfer.sockets.context import Context
    from transfer.sockets.socket import Socket

#: seconds after which a socket that closes reports a missing peer
_LONG_WAIT = 5.0


class Connections:
    """Binds and connects the endpoints of a socket. Thread-safe; callbacks run in the reactor's thread."""

    def __init__(self, socket: Socket, context: Context, pattern: Pattern) -> None:
        self.state = state = ConnectionState(socket, context, pattern)
        self._pattern, self._context, self._lock = pattern, context, state.lock
        #: connected endpoints for which no queue is made yet, and a lock that is held while it is
        self.unqueued: deque[Endpoint] = deque()
        self._queueing = threading.RLock()

    @made_once
    def no_peer(self) -> NoPeer:
        return NoPeer(self.state)

    @made_once
    def credits(self) -> Credits:
        return Credits(self.state)

    @made_once
    def log_reader(self) -> LogReader:
        return LogReader(self.state)

    @property
    def reads_log(self) -> bool:
        """Whether this is a SUB that connects with `?begin=`."""
        return "log_reader" in self.__dict__ and self.log_reader.positions is not None

    @made_once
    def orphans(self) -> Orphans:
        return Orphans(self.state, self.credits)

    @made_once
    def loss(self) -> ConnectionLoss:
        return ConnectionLoss(self.state, self.no_peer, self.credits, self.log_reader, self.orphans)

    @made_once
    def control(self) -> Controls:
        return Controls(self.state, self.credits, self.log_reader, self.loss)

    @made_once
    def admission(self) -> ConnectionAdmission:
        return ConnectionAdmission(
            self.state, self.no_peer, self.log_reader, self.orphans, self.loss, self.control
        )

    @made_once
    def heartbeats(self) -> Heartbeats:
        return Heartbeats(self.state, self.loss)

    @made_once
    def queue_limits(self) -> QueueLimits:
        return QueueLimits(self.state)

    @made_once
    def _dialer(self) -> Dialer:
        return Dialer(self.state)

    def infos(self) -> list[PeerInfo]:
        """Every connected peer, for display."""
        self.credits.read_credits()
        with self._lock:
            peers = [peer for peer in self.state.peers.values() if not peer.pending]
            return [peer.info(self.state.gpu, self.state.gpu_received) for peer in peers]

    def schedule_checks(self) -> None:
        """Schedules the next check of the peers, for heartbeats and for limits."""
        self.heartbeats.schedule()
        self.queue_limits.schedule()

    # -- endpoints ----------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> str:
        """Binds; returns the endpoint with the real port. Raises as `transports.serve`."""
        socket = self.state.owner()
        address = parse(endpoint)
        if address.is_directory:
            raise AddressError(
                f"{endpoint} can be connected to, not bound",
                hint="bind tcp://*:port; announce() registers it, and a service of Kubernetes DNS",
            )
        check_begin(address, self._pattern, bound=True)
        record = Endpoint(address, time.monotonic(), outgoing=False)
        prepare = self._dialer.preparation(address)
        if prepare is not None:
            prepare()
        try:
            record.acceptor = serve(
                self._context.reactor,
                registry.open_transport(address.scheme, self._dialer.transport_options(socket)),
                address,
                hello=self._dialer.hello,
                on_connected=partial(self._connected, record),
                on_failed=partial(self._refused, record),
                admits=lambda agreement: self.admission.check_admission(record, agreement),
                backlog=socket.backlog,
                handshake_timeout=handshake_timeout(socket),
                upgrades=self._dialer.upgrade,
                credentials=self._context.credentials,
                mechanism=self._context._transfer_mechanism(socket, address),
                shares_endpoint=self._context.defaults.shares_endpoints,
            )
        except TransferError as error:
            self.state.emit(EventKind.BIND_FAILED, endpoint, error=error)
            raise
        record.address = record.acceptor.address
        with self._lock:
            open_still = not self.state.closing
            if open_still:
                self.state.endpoints.append(record)
        if not open_still:  # another thread closed the socket and did not see this one
            record.close()
            raise Closed("the socket is closed")
        self.state.emit(EventKind.LISTENING, str(record.address))
        self._settle(address)
        return str(record.address)

    def connect(self, endpoint: str) -> Endpoint:
        """Starts to connect. Blocks only under the policy `require`; then raises Fatal or Again."""
        socket = self.state.owner()
        address = parse(endpoint)
        record = Endpoint(address, time.monotonic(), outgoing=True)
        if address.begin and check_begin(address, self._pattern):
            with self._lock:
                self._check_once(address)
                self.log_reader.positions = self.log_reader.positions or TopicPositions()
            socket._update_fast_paths()
        directory = open_directory(address, self._context) if address.is_directory else None
        with self._lock:
            self.state.owner()
            self.state.endpoints.append(record)
        self._queue_later(socket, record)
        try:
            if directory is not None:
                self.make_queues()
                record.connector = DirectoryConnector(self, record, directory)
            else:
                self._reach(socket, record)
        except BaseException:
            self.forget(record)
            raise
        if self.state.closing:  # another thread closed the socket and found no connector here
            record.close()
            raise Closed("the socket is closed")
        if socket.adaptive_hwm:
            self.queue_limits.schedule()
        if (address.policy or self._context.transport_config.policy) == "require":
            self._await_handshake(record, handshake_timeout(socket))
        self._settle(address)
        return record

    def _settle(self, address: Address) -> None:
        if address.scheme == inproc.SCHEME:
            inproc.settle(self._context.reactor, self._pattern.socket_type)

    def _check_once(self, address: Address) -> None:
        """Raises AddressError for a second connection to one log, which would double its messages."""
        bare = replace(address, begin=None, policy=None)
        for other in self.state.endpoints:
            if other.address.begin and replace(other.address, begin=None, policy=None) == bare:
                raise AddressError(
                    f"{address}: {other.address} is connected already", hint="disconnect it first"
                )

    def _reach(self, socket: Socket, record: Endpoint) -> None:
        address, dialer = record.address, self._dialer
        record.connector = reach(
            self._context.reactor,
            registry.open_transport(address.scheme, dialer.transport_options(socket)),
            address,
            hello=lambda: dialer.hello(record),
            on_connected=partial(self._connected, record),
            on_failed=lambda error: self.admission.failed(record, error),
            admits=lambda agreement: self.admission.check_admission(record, agreement),
            begins=lambda: self.admission.check_handshake(record),
            on_delayed=lambda: self.state.emit(EventKind.CONNECT_DELAYED, str(address)),
            on_retried=partial(self._retried, address),
            on_begin=self.make_queues,
            options=dialer.connect_options(socket, dialer.preparation(address)),
            upgrades=dialer.upgrade,
            credentials=self._context.credentials,
            mechanism=self._context._transfer_mechanism(socket, address),
        )

    def _connected(self, record: Endpoint, made: Connected) -> None:
        """Takes a connection from the reactor. The first one starts the checks of the peers."""
        self.admission.connected(record, made)
        self.schedule_checks()

    def _queue_later(self, socket: Socket, record: Endpoint) -> None:
        """Has messages queued for the endpoint until it is connected (lazy connect), from the first on."""
        if socket.immediate or self._pattern.send_mode is not SendMode.ROUND_ROBIN:
            return
        with self._queueing:
            self.unqueued.append(record)
            if self.state.peers:  # the core sends alone, and it has to see this queue, too
                self.make_queues()

    def make_queues(self) -> None:
        """Makes the queues that are due: before the program sends or asks for room, and before the reactor
        connects."""
        if not self.unqueued or self._context.forked:
            return
        with self._queueing:
            while self.unqueued:
                self.loss.queue_for(self.unqueued[0])
                self.unqueued.popleft()

    def reach_member(self, follower: DirectoryConnector, address: Address) -> Endpoint | None:
        """Starts to connect to a member of an endpoint that stands for many. None: the endpoint or the socket
        is closed. Raises TransferError."""
        socket = self.state.socket()
        record = Endpoint(address, time.monotonic(), outgoing=True)
        record.follower = follower
        with self._lock:
            if socket is None or self.state.closing or follower.record not in self.state.endpoints:
                return None
            self.state.endpoints.append(record)
        try:
            self._reach(socket, record)
        except BaseException:
            self.forget(record)
            raise
        with self._lock:
            wanted = not self.state.closing and record in self.state.endpoints
        if not wanted:  # another thread gave it up and may have found no connector here
            record.close()
            return None
        return record

    def release(self, endpoint: str, bound: bool) -> Endpoint:
        """Ends a bound or connected endpoint. Raises AddressError if there is no such endpoint."""
        wanted = str(parse(endpoint))
        with self._lock:
            for record in reversed(self.state.endpoints):
                own = record.follower is None and bound == (record.acceptor is not None)
                if own and str(record.address) == wanted:
                    break
            else:
                what = "bound" if bound else "connected"
                others = (e for e in self.state.endpoints if e.follower is None)
                here = ", ".join(str(e.address) for e in others if bound == (e.acceptor is not None))
                raise AddressError(f"{endpoint} is not {what}", hint=f"{what} are: {here or 'none'}")
            self.state.endpoints.remove(record)
        record.close()
        return record

    def drop(self, record: Endpoint, linger: float) -> None:
        """Ends the connections and the queue of a released endpoint, and of its members."""
        with self._lock:
            members = [other for other in self.state.endpoints if is_member_of(other, record.connector)]
            self.state.endpoints = [other for other in self.state.endpoints if other not in members]
            ended = [record, *members]
            peers = [p for one in ended for p in (one.peer, one.queue) if p is not None]
        deadline = time.monotonic() + linger
        drain.flush([p.stream for p in peers if not p.pending], deadline)
        for peer in peers:
            self.loss.lost(peer.stream, Closed(f"{record.address} was disconnected"))

    def _await_handshake(self, record: Endpoint, timeout: float) -> None:
        self.state.changed.wait_for(
            lambda: self._is_reached(record) or self.state.fatal or self.state.closing, timeout
        )
        if not self._is_reached(record):
            missing = self.no_peer.error(f"no handshake with {record.address} within {timeout:g} s: ")
            self.forget(record)
            if self.state.fatal is not None:
                raise self.state.fatal
            raise missing from record.error

    def _is_reached(self, record: Endpoint) -> bool:
        """Whether the endpoint, or one of its members, has a connection."""
        members = (other for other in self.state.endpoints if is_member_of(other, record.connector))
        return record.peer is not None or any(member.peer is not None for member in members)

    def forget(self, record: Endpoint) -> None:
        with self._lock:
            if record in self.state.endpoints:
                self.state.endpoints.remove(record)
            queue, record.queue = record.queue, None
        record.close()
        if queue is not None:
            self.loss.lost(queue.stream, Broken(f"{record.address} was disconnected"))
        if record.address.is_directory:
            self.drop(record, 0)

    # -- failures of connectors and acceptors -------------------------------------------------------

    def _retried(self, address: Address, pause: float) -> None:
        """Records that the connector tries again after this pause, in seconds."""
        self.state.count("retried")
        self.state.emit(EventKind.CONNECT_RETRIED, str(address))

    def _refused(self, record: Endpoint, error: TransferError, where: str) -> None:
        """Records an accepted connection that failed."""
        reason = getattr(error, "reason", "")
        if reason in PLACE_TAKEN or reason == "busy":
            self.state.count(f"refused:{reason}")
            self.state.emit(EventKind.ACCEPT_FAILED, str(record.address), where, reason, error=error)
        elif isinstance(error, (HandshakeError, ProtocolError)):
            here = f"listening on {record.address}, {where} was refused"
            if not self.no_peer.warn_of(here, error, outgoing=False):
                text = str(error).partition("\n")[0]
                self.state.throttled.log(logging.INFO, reason, "%s: %s", here, text)
            self.state.count(f"handshake:{reason}")
            self.state.emit(EventKind.HANDSHAKE_FAILED, str(record.address), where, reason, error=error)
        else:
            reason = str(error).replace("\n  hint:", ";")
            text = "%s: a connection is not accepted: %s"
            self.state.throttled.log(logging.WARNING, "accept", text, record.address, reason, most=1)
            self.state.count("accept_failed")
            self.state.emit(EventKind.ACCEPT_FAILED, str(record.address), where, error=error)

    # -- the end ------------------------------------------------------------------------------------

    def flush(self, deadline: float) -> None:
        """Sends what is queued, until `deadline` (time.monotonic()); with `resend` until it is confirmed.

        Meanwhile endpoints still listen and connect: the peer may yet arrive.
        """
        due = time.monotonic() + _LONG_WAIT
        while True:
            if time.monotonic() >= due:
                self.no_peer.long_wait()
            for peer in list(self.state.peers.values()):
                if peer.retained and drain.has_ended(peer.fd):
                    self.loss.lost(peer.stream, Broken("the peer closed the connection"))
            with self._lock:
                streams = [peer.stream for peer in self.state.peers.values()]
                left_over = self.orphans.waiting
                waiting = left_over or any(map(drain.unsent, streams))
            if not waiting and not self._awaits_confirmation():
                return
            drain.flush(streams, min(deadline, time.monotonic() + 0.05))
            if time.monotonic() >= deadline:
                return
            if left_over or not waiting:
                self.state.changed.wait(0.01)

    def _awaits_confirmation(self) -> bool:
        """Whether a message is kept for a resend, and its confirmation may still arrive."""
        kept = list(filter(_is_kept, list(self.state.peers.values())))
        if isinstance(self._pattern, Requester) or not kept:
            return False
        for peer in kept if not self.state.receives else ():
            self.control.read(peer)
        self.credits.read_credits()
        socket = self.state.socket()
        # Behind a message that no call receives any more, no credit is seen.
        return not (self.state.receives and socket is not None and socket._readable())

    def _begin_close(self) -> tuple[list[Endpoint], list[Peer], list[Any], list[Orphan]]:
        """From now on nothing is added. No message of a lost connection is between two lists then."""
        with self._lock:
            if not self._have_orphans:
                return self._stop()
        while True:
            settled = self.orphans.wait_for_moves()
            with self.orphans.offers_blocked(), self._lock:
                if settled and self.orphans.moving:
                    continue  # another connection was lost meanwhile
                return self._stop()

    def _stop(self) -> tuple[list[Endpoint], list[Peer], list[Any], list[Orphan]]:
        self.state.closing = True
        endpoints, self.state.endpoints = self.state.endpoints, []
        timers, self.state.timers = list(self.state.timers.values()), {}
        self.state.changed.notify_all()
        orphans = self.orphans.take_all() if self._have_orphans else []
        return endpoints, list(self.state.peers.values()), timers, orphans

    @property
    def _have_orphans(self) -> bool:
        """Whether messages of lost connections wait, or are between two lists. Under the lock."""
        return "orphans" in self.__dict__ and self.orphans.waiting

    def close(self, deadline: float) -> int:
        """Ends everything and returns the number of messages that were not sent. Call `flush` before."""
        endpoints, peers, timers, orphans = self._begin_close()
        for timer in timers:
            timer.cancel()
        for record in endpoints:
            record.close()
        unsent = len(orphans)
        for orphan in orphans:
            if orphan.tracker is not None:
                orphan.tracker._fail(closed_by_us("the message found a peer"))
        if peers:
            unsent += self.end(peers, deadline)
        for record in endpoints:
            record.peer = record.queue = None
        self._pattern.drop("unsent", unsent)
        for kept in self.state.own.values():
            kept.close()
        with self._lock:
            self.state.remove_all()
        self.state.emit(EventKind.CLOSED)
        return unsent

    def end(self, peers: list[Peer], deadline: float) -> int:
        """Ends these connections in order and returns the number of their messages that were not sent."""
        for peer in peers:
            if peer.confirms_ours and peer.stream.broken is None:
                try:  # the last credit, so that the sender's count of lost messages is exact
                    last = CREDIT.pack(Control.CREDIT, peer.stream.consumed)
                    peer.stream.send(control(last), force=True)
                except Broken:
                    continue
        drain.flush([peer.stream for peer in peers if not peer.pending], deadline)
        # Counted before `finish`, which breaks a stream that is still writing; its message would not count
        # as lost afterwards.
        queued = {peer.stream: drain.unsent(peer.stream) for peer in peers}
        closed = closed_by_us("the peer confirmed it")
        ours = [p for p in peers if p.stream.broken is None and not drain.has_ended(p.fd)]
        for _, tracker in [one for peer in ours for one in list(peer.trackers)]:
            tracker._closing(closed)
        drain.finish([p.fd for p in peers if p.fd >= 0 and p.stream.broken is None], deadline)
        unsent = 0
        for peer in peers:
            self.state.unwatch(peer)
            kept = _is_kept(peer)
            lost = self.loss.is_lost(peer, peer in ours)
            left = max(queued[peer.stream], peer.stream.close())
            unsent += left
            if lost or kept:
                unconfirmed = self.loss.count_unconfirmed(peer, left)
                unsent += unconfirmed if kept else 0
            self._context.tally.peer_ended(self._pattern.socket_type.name, peer)
            peer.settle(0)
            for _, tracker in peer.trackers:
                tracker._fail(closed if peer in ours else Broken("the peer closed the connection"))
            peer.part()
        return unsent


def _is_kept(peer: Peer) -> bool:
    """Whether messages to this peer are kept until it confirms them."""
    return peer.confirms and bool(peer.retained)
