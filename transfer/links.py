"""The connections of one socket: they come, they go, and what they held is not lost in silence.

Everything here is rare: it runs in the reactor's thread, or in the thread that found a connection
broken, never once for each message.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from patterns import PATTERNS, Publisher, Requester, Subscriber
from patterns.base import Pattern, ReceiveMode, SendMode
from patterns.pub_sub import decode_order, encode_order
from transfer import draining
from transfer.monitor import Event, EventKind, Monitor
from transfer.peer import Endpoint, Peer, PeerInfo
from transfer.tracker import Tracker
from transports import registry
from transports.address import parse
from transports.config import SocketOptions
from transports.connection import Connected, ConnectOptions, reach, serve
from transports.errors import (
    AddressError,
    Again,
    Broken,
    Closed,
    Fatal,
    HandshakeError,
    ProtocolError,
    TransferError,
)
from transports.identity import make_hello
from transports.reactor import EDGE, PEER_CLOSED, READABLE
from transports.wire import Control, Flag, SocketType

if TYPE_CHECKING:
    from patterns.base import OutFrame
    from transfer.context import Context
    from transfer.socket import SocketMethods

logger = logging.getLogger("transfer")

_CREDIT = struct.Struct("<BQ")
#: seconds until messages of a lost peer that nobody had room for are offered again
_RETRY = 0.01


def control(data: bytes) -> list[OutFrame]:
    """A message of one control frame."""
    return [(Flag.CONTROL, 0, None, None, data)]


class Links:
    """Endpoints and peers of a socket. It refers to the socket weakly, so that a socket that
    nobody uses any more can be found and closed although the reactor knows its links."""

    def __init__(self, socket: SocketMethods, context: Context, pattern: Pattern) -> None:
        self._socket = weakref.ref(socket)
        self.context = context
        self.pattern = pattern
        self.peers: dict[Any, Peer] = {}
        self.endpoints: list[Endpoint] = []
        self.monitors: list[Monitor] = []
        #: messages of lost peers that wait for another one: (frames, tracker)
        self.orphans: deque[tuple[list[OutFrame], Tracker | None]] = deque()
        #: plain counters by a constant word, read by the metrics
        self.counts: dict[str, int] = {}
        #: why no further connect can succeed (policy `require`)
        self.fatal: Fatal | None = None
        self.closing = False
        # Never held while the core is called, except for sends on one stream: the core calls
        # `lost` from any thread and may hold locks of its own then.
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._timers: dict[str, Any] = {}
        self.sends = pattern.send_mode is not SendMode.NONE or pattern.ordered
        self.receives = pattern.receive_mode is not ReceiveMode.NONE

    # -- endpoints -----------------------------------------------------------------------------

    def bind(self, endpoint: str) -> str:
        """Binds; returns the endpoint with the real port. Raises as `transports.serve` does."""
        socket = self._owner()
        address = parse(endpoint)
        record = Endpoint(address, time.monotonic())
        try:
            record.acceptor = serve(
                self.context.reactor,
                registry.open_transport(address.scheme, self._transport_options(socket)),
                address,
                hello=self._hello,
                on_connected=partial(self._connected, record),
                on_failed=partial(self._refused, record),
                backlog=socket.backlog,
                handshake_timeout=_handshake_timeout(socket),
            )
        except TransferError as error:
            self.emit(EventKind.BIND_FAILED, endpoint, error=error)
            raise
        record.address = record.acceptor.address
        with self._lock:
            self.endpoints.append(record)
        self.emit(EventKind.LISTENING, str(record.address))
        self.schedule_heartbeat()
        return str(record.address)

    def connect(self, endpoint: str) -> Endpoint:
        """Begins to connect. Waits only under the policy `require`; then raises Fatal or Again."""
        socket = self._owner()
        address = parse(endpoint)
        record = Endpoint(address, time.monotonic())
        with self._lock:
            self.endpoints.append(record)
        self._queue_for(record)
        try:
            record.connector = reach(
                self.context.reactor,
                registry.open_transport(address.scheme, self._transport_options(socket)),
                address,
                hello=self._hello,
                on_connected=partial(self._connected, record),
                on_failed=partial(self._failed, record),
                on_delayed=partial(self.emit, EventKind.CONNECT_DELAYED, str(address)),
                on_retried=partial(self._retried, str(address)),
                options=self._connect_options(socket),
            )
        except BaseException:
            self._forget(record)
            raise
        self.schedule_heartbeat()
        if (address.policy or self.context.transport_config.policy) == "require":
            self._await_handshake(record, _handshake_timeout(socket))
        return record

    def release(self, endpoint: str, bound: bool) -> Endpoint:
        """Ends a bound or connected endpoint. Raises AddressError if there is none like it."""
        wanted = str(parse(endpoint))
        with self._lock:
            for record in reversed(self.endpoints):
                if bound == (record.acceptor is not None) and str(record.address) == wanted:
                    break
            else:
                what = "bound" if bound else "connected"
                here = ", ".join(str(e.address) for e in self.endpoints if bound == (e.acceptor is not None))
                raise AddressError(f"{endpoint} is not {what}", hint=f"{what} are: {here or 'none'}")
            self.endpoints.remove(record)
        record.close()
        return record

    def _await_handshake(self, record: Endpoint, timeout: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: record.peer or self.fatal or self.closing, timeout)
        if record.peer is None:
            self._forget(record)
            if self.fatal is not None:
                raise self.fatal
            raise Again(f"no handshake with {record.address} within {timeout:g} s") from record.error

    def _forget(self, record: Endpoint) -> None:
        with self._lock:
            if record in self.endpoints:
                self.endpoints.remove(record)
            queue, record.queue = record.queue, None
        record.close()
        if queue is not None:
            self.lost(queue.stream, Broken(f"{record.address} was given up"))

    def _queue_for(self, record: Endpoint) -> None:
        """With lazy connect: messages queue here until the endpoint is there."""
        socket = self._socket()
        if (
            socket is None
            or socket.immediate
            or self.pattern.send_mode is not SendMode.ROUND_ROBIN
            or registry.find(record.address.scheme).capabilities.by_reference
        ):
            return
        expected = min(self.pattern.peer_types)
        with self._lock:
            if self.closing or (self.pattern.socket_type is SocketType.PAIR and self.pattern.peers):
                return
            stream = self._new_stream(socket, -1)
            peer = Peer(stream, record, expected)
            stream.peer = peer
            self.pattern.attach(stream, expected)
            self.peers[stream] = peer
            record.queue = peer
        socket._attach(stream, True, self.receives)
        self._give_orphans()
        socket._ways_changed()

    # -- connections come ----------------------------------------------------------------------

    def _connected(self, record: Endpoint, made: Connected) -> None:
        """The reactor has a connection for us, after its handshake."""
        socket = self._socket()
        if socket is None or self.closing:
            _discard(made)
            return
        remote = made.agreement.remote
        queue, record.queue = record.queue, None
        if queue is not None:
            socket._detach(queue.stream)
        try:
            peer, replaced = self._admit(socket, record, made, queue)
        except HandshakeError as error:
            self._turn_away(record, made, error)
            if queue is not None:
                record.queue = queue
                socket._attach(queue.stream, True, self.receives)
            return
        except Broken as error:
            self._failed(record, error)
            return
        if replaced is not None:
            self.lost(replaced, Broken("the peer came back by a new connection"))
        socket._attach(peer.stream, self.sends, self.receives)
        self._watch(peer)
        if record.connector is not None:
            record.peer = peer
            record.attempts = 0
        self._count("connected")
        self._explain_choice(peer)
        self._give_orphans()
        socket._ways_changed()
        with self._lock:
            self.changed.notify_all()
        socket._notify()
        self.emit(EventKind.CONNECTED, peer.endpoint, peer.address, remote.socket_type.name)

    def _admit(
        self, socket: SocketMethods, record: Endpoint, made: Connected, queue: Peer | None
    ) -> tuple[Peer, Any]:
        """Makes the stream and tells the pattern. Raises HandshakeError; nothing has changed then."""
        remote = made.agreement.remote
        features = made.agreement.features
        with self._lock:
            if queue is not None:
                self.pattern.detach(queue.stream)
            try:
                self.pattern.check(remote.socket_type, remote.routing_id)
            except HandshakeError:
                if queue is not None:
                    self.pattern.attach(queue.stream, queue.socket_type)
                raise
            credits = self.pattern.confirms and "credit" in features
            if made.stream is not None:
                stream = made.stream
            elif queue is not None:
                stream = queue.stream
                stream.open(made.fd)
                stream.credits = credits
            else:
                stream = self._new_stream(socket, made.fd, credits)
            peer = queue or Peer(stream, record, remote.socket_type)
            stream.peer = peer
            peer.socket_type = remote.socket_type
            peer.address = made.peer
            peer.agreement = made.agreement
            peer.fd = made.fd
            peer.confirms = "credit" in features and _confirms(remote.socket_type)
            peer.since_ns = time.monotonic_ns()
            peer.confirms_ours = credits
            peer.heartbeat = _number(remote.extra.get("heartbeat_ms"))
            replaced = self.pattern.attach(stream, remote.socket_type, remote.routing_id)
            self.peers[stream] = peer
            if isinstance(self.pattern, Subscriber):
                for order in self.pattern.introduce(stream):
                    stream.send(control(order), force=True)
        return peer, replaced

    def _new_stream(self, socket: SocketMethods, fd: int, credits: bool = False) -> Any:
        return self.context.core.Stream(
            fd,
            int(self.pattern.socket_type),
            self.context.flusher,
            self.context.pool,
            send_high_water=socket.sndhwm,
            send_high_water_bytes=socket.sndhwm_bytes,
            max_message=socket.largest_message,
            checksum=socket.checksum,
            credits=credits,
        )

    def _turn_away(self, record: Endpoint, made: Connected, error: HandshakeError) -> None:
        """Refuses a peer after its hello was good, and says why."""
        self._count(f"refused:{error.reason}")
        self.emit(EventKind.ACCEPT_FAILED, str(record.address), made.peer, error.reason, error=error)
        if made.stream is not None:
            made.stream.close()
        elif made.fd >= 0:
            refusal = bytes([Control.REFUSED]) + error.reason.encode()
            stream = self.context.core.Stream(
                made.fd, int(self.pattern.socket_type), self.context.flusher, self.context.pool
            )
            try:
                stream.send(control(refusal), force=True)
                stream.flush()
            except Broken:
                logger.debug("%s was gone before it was refused", made.peer)
            stream.close()
        if record.connector is not None:
            record.connector.lost()

    def _watch(self, peer: Peer) -> None:
        """The reactor reads what a send-only socket gets, and sees a peer's end also while the
        application is busy elsewhere."""
        if peer.fd < 0:
            if not self.receives:
                peer.stream.on_readable = partial(self._read, peer)
            return
        if self.receives:
            events = PEER_CLOSED | EDGE
            if events != EDGE and PEER_CLOSED:
                self.context.reactor.register(peer.fd, events, partial(self._ended, peer))
        else:
            self.context.reactor.register(peer.fd, READABLE, partial(self._read, peer))

    def _explain_choice(self, peer: Peer) -> None:
        """Says once why a better transport is not used."""
        agreement = peer.agreement
        if agreement is None:
            return
        for name in agreement.choice.unused:
            self._count(f"unused:{name}")
            self.context.log_once(
                f"{name} is there on both sides and not used: {agreement.choice.reason} "
                f"(decided by {self.context.transport_config.protocol_source})"
            )
        if agreement.choice.fallback:
            self._count("fallback")
            self.context.log_once(f"fell back to {agreement.choice.transport}: {agreement.choice.reason}")

    # -- connections go ------------------------------------------------------------------------

    def lost(self, stream: Any, error: BaseException) -> bool:
        """A stream ended. Any thread, any number of times. False: it was known already."""
        with self._lock:
            peer = self.peers.pop(stream, None)
            if peer is None or self.closing:
                if peer is not None:
                    self.peers[stream] = peer  # close() takes care of it
                return False
            self.pattern.detach(stream)
            self._unwatch(peer)
        socket = self._socket()
        if socket is not None:
            socket._detach(stream)
        unsent = _take_unsent(stream)
        first = stream.sent - len(unsent) + 1
        unconfirmed = max(0, stream.sent - len(unsent) - stream.confirmed) if peer.confirms else 0
        stream.close()
        self.context.tally.peer_ended(self.pattern.socket_type.name, peer)
        self._count("disconnected")
        self._settle(peer, unsent, first, error)
        if unconfirmed:
            self._count("unconfirmed", unconfirmed)
        self._reconnect(peer)
        self._give_orphans()
        if socket is not None:
            socket._ways_changed()
        with self._lock:
            self.changed.notify_all()
        if socket is not None and not socket.closed:
            socket._notify()
            if isinstance(self.pattern, Requester) and self.pattern.failure is not None:
                # Once more from outside: a receiving call that found the loss takes its own
                # notice back, and an event loop has to see that there is an error to fetch.
                self.context.reactor.call_soon(self._notify)
        self._announce(peer, error, unconfirmed, len(unsent))
        return True

    def _settle(
        self, peer: Peer, unsent: list[list[OutFrame]], first: int, error: BaseException
    ) -> None:
        """Decides about every message that the lost peer had not confirmed.

        `unsent` are the last ones of the stream, their numbers begin with `first`.
        """
        trackers = dict(peer.trackers)
        kept = self.pattern.send_mode is SendMode.ROUND_ROBIN
        if isinstance(self.pattern, Requester):
            self._settle_request(self.pattern, peer, unsent, error)
            kept = False
        elif kept and peer.retained:
            again = [(frames, trackers.pop(n, None)) for n, frames in peer.retained if n < first]
            self._count("resent", len(again))
            self.orphans.extend(again)
        if kept:
            self.orphans.extend((frames, trackers.pop(first + i, None)) for i, frames in enumerate(unsent))
            self._count("redistributed", len(unsent))
        elif unsent and not isinstance(self.pattern, Requester):
            self.pattern.drop("peer_gone", len(unsent))
        for tracker in trackers.values():
            tracker._fail(error)

    def _settle_request(
        self, pattern: Requester, peer: Peer, unsent: list[list[OutFrame]], error: BaseException
    ) -> None:
        """A request that never left goes to another peer, one that did fails, or is sent again."""
        if not pattern.waiting or pattern.peer is not peer.stream:
            return
        request = next((frames for frames in unsent if frames[0][1] == pattern.waiting), None)
        if request is None and peer.retained:
            request = peer.retained[-1][1]
            self._count("resent")
        if request is None:
            pattern.fail(peer.stream, error)
        else:
            pattern.peer = None
            self.orphans.append((request, None))

    def _reconnect(self, peer: Peer) -> None:
        record = peer.source
        if record.connector is None:
            return
        if record.queue is peer:
            record.queue = None
        if record.peer is peer:
            record.peer = None
            record.since = time.monotonic()
            self._queue_for(record)
            record.connector.lost()

    def _announce(self, peer: Peer, error: BaseException, unconfirmed: int, unsent: int) -> None:
        where = (peer.endpoint, peer.address)
        if isinstance(error, ProtocolError):
            self._count(f"protocol:{error.reason}")
            self.emit(EventKind.PROTOCOL_FAILED, *where, error.reason, error=error)
        if unconfirmed:
            self.emit(EventKind.UNCONFIRMED, *where, count=unconfirmed, error=error)
        if unsent and self.pattern.send_mode is SendMode.ROUND_ROBIN:
            self.emit(EventKind.REDISTRIBUTED, *where, count=unsent)
        self.emit(EventKind.DISCONNECTED, *where, error=error)

    def _unwatch(self, peer: Peer) -> None:
        if peer.fd >= 0:
            self.context.reactor.unregister(peer.fd)
        elif peer.agreement is not None:
            peer.stream.on_readable = None

    def _give_orphans(self) -> None:
        """Offers the messages of lost peers to whoever has room."""
        socket = self._socket()
        if socket is None or socket.closed or self.closing:
            return
        while True:
            with self._lock:
                if not self.orphans:
                    return
                frames, tracker = self.orphans.popleft()
            try:
                if not self.peers:
                    raise Again("nobody is there")
                if tracker is not None:
                    tracker._again()
                stream = socket._send_frames(
                    frames, 0, hold=True, released=tracker._released if tracker else None
                )
            except (Again, Closed):
                with self._lock:
                    self.orphans.appendleft((frames, tracker))
                if self.peers and "orphans" not in self._timers:
                    self._later("orphans", _RETRY, self._give_orphans)
                return
            if isinstance(self.pattern, Requester):
                self.pattern.peer = stream
            self.note(stream, frames, tracker)

    def note(self, stream: Any, frames: Sequence[OutFrame], tracker: Tracker | None) -> None:
        """A message went to this stream: remembers who wants to know what becomes of it."""
        peer = self.peers.get(stream)
        if peer is None:
            if tracker is not None:
                tracker._taken(1)
                tracker._fail(Broken("the peer went at once"))
            return
        socket = self._socket()
        if socket is not None and socket.resend:
            peer.retained.append((stream.sent, list(frames)))
        if tracker is not None:
            tracker._taken(1)
            if peer.confirms or peer.pending or isinstance(self.pattern, Requester):
                peer.trackers.append((stream.sent, tracker))
            else:
                tracker._not_confirmable()

    # -- what the reactor finds ----------------------------------------------------------------

    def _read(self, peer: Peer, events: int = READABLE) -> None:
        """Control frames on a send-only socket, and its peer's end."""
        stream = peer.stream
        try:
            while (frames := stream.receive()) is not None:
                if not frames[0].flags & Flag.CONTROL:
                    raise ProtocolError("flags", f"data for a {self.pattern.socket_type.name}, which only sends")
                self.on_control(stream, frames[0])
        except (Broken, ProtocolError) as error:
            self.lost(stream, error)

    def _ended(self, peer: Peer, events: int) -> None:
        """The peer closed its side. What it sent before is still to be read by the application,
        who finds the end behind it; only a new connection need not wait for that."""
        self.context.reactor.unregister(peer.fd)
        if self.pattern.socket_type in (SocketType.SUB, SocketType.PULL) and peer.source.peer is peer:
            peer.source.peer = None
            if peer.source.connector is not None:
                peer.source.connector.lost()
        socket = self._socket()
        if socket is not None:
            socket._readable()  # finds the end, unless there is something to read before it

    def on_control(self, stream: Any, frame: Any) -> None:
        """A control frame arrived. Raises ProtocolError for one that makes no sense."""
        data = bytes(frame.data)
        peer = self.peers.get(stream)
        if peer is None or not data:
            return
        kind = data[0]
        if kind == Control.CREDIT:
            if len(data) != _CREDIT.size:
                raise ProtocolError("control", f"a credit of {len(data)} bytes")
            peer.confirm(_CREDIT.unpack(data)[1])
        elif kind in (Control.SUBSCRIBE, Control.UNSUBSCRIBE, Control.SUBSCRIBED):
            self._on_subscription(peer, data)
        elif kind == Control.REFUSED:
            reason = data[1:65].decode("ascii", "replace")
            self._count(f"refused:{reason}")
            self.emit(EventKind.REFUSED, peer.endpoint, peer.address, reason)

    def _on_subscription(self, peer: Peer, data: bytes) -> None:
        kind, number, prefix = decode_order(data)
        pattern = self.pattern
        stream = peer.stream
        if isinstance(pattern, Subscriber) and kind == Control.SUBSCRIBED:
            pattern.acknowledged(stream, number)
        elif isinstance(pattern, Publisher) and kind == Control.SUBSCRIBE:
            pattern.subscribe(stream, prefix)
            stream.subscribe(prefix)
            stream.send(control(encode_order(Control.SUBSCRIBED, number)), force=True)
            self.emit(EventKind.SUBSCRIBED, peer.endpoint, peer.address)
        elif isinstance(pattern, Publisher) and kind == Control.UNSUBSCRIBE:
            pattern.unsubscribe(stream, prefix)
            stream.unsubscribe(prefix)
            self.emit(EventKind.UNSUBSCRIBED, peer.endpoint, peer.address)
        else:
            raise ProtocolError("control", f"control {kind} makes no sense to a {pattern.socket_type.name}")
        with self._lock:
            self.changed.notify_all()

    # -- failures of connectors and acceptors --------------------------------------------------

    def _retried(self, endpoint: str, pause: float) -> None:
        """The connector tries again after this pause, in seconds."""
        self._count("retried")
        self.emit(EventKind.CONNECT_RETRIED, endpoint)

    def _failed(self, record: Endpoint, error: TransferError) -> None:
        """One attempt to connect failed; the connector tries again, except after Fatal."""
        record.attempts += 1
        record.error = error
        if isinstance(error, Fatal):
            self.fatal = error
            socket = self._socket()
            if socket is not None:
                socket._ways_changed()
                socket._notify()
        if isinstance(error, (HandshakeError, Fatal)):
            reason = getattr(error, "reason", "policy")
            self._count(f"handshake:{reason}")
            self.emit(EventKind.HANDSHAKE_FAILED, str(record.address), reason=reason, error=error)
        with self._lock:
            self.changed.notify_all()

    def _refused(self, record: Endpoint, error: TransferError, where: str) -> None:
        """An accepted connection came to nothing."""
        reason = getattr(error, "reason", "")
        if isinstance(error, (HandshakeError, ProtocolError)):
            self._count(f"handshake:{reason}")
            self.emit(EventKind.HANDSHAKE_FAILED, str(record.address), where, reason, error=error)
        else:
            self._count("accept_failed")
            self.emit(EventKind.ACCEPT_FAILED, str(record.address), where, error=error)

    def why_nobody(self) -> tuple[str, str]:
        """(what is the matter, what to do) for a socket without peers."""
        with self._lock:
            endpoints = list(self.endpoints)
        if not endpoints:
            return "this socket is neither bound nor connected", "call bind() or connect() first"
        tried = [e for e in endpoints if e.connector is not None]
        if not tried:
            names = ", ".join(str(e.address) for e in endpoints)
            return f"nobody has connected to {names} yet", "start the peer, or wait_for_peers()"
        worst = tried[0]
        seconds = time.monotonic() - worst.since
        cause = str(worst.error).partition("\n")[0] if worst.error is not None else "no answer yet"
        return (
            f"nobody serves {worst.address} yet: tried for {seconds:.1f} s ({cause})",
            "start the peer; check host and port; `transfer doctor` shows what works here",
        )

    # -- heartbeats ----------------------------------------------------------------------------

    def schedule_heartbeat(self) -> None:
        socket = self._socket()
        if socket is None or self.closing:
            return
        interval = socket.heartbeat_ivl or (socket.heartbeat_timeout if socket.heartbeat_timeout > 0 else 0)
        if interval > 0 and "heartbeat" not in self._timers:
            self._later("heartbeat", interval / 1000.0, self._beat)

    def _beat(self) -> None:
        """One-way: tells idle peers that we live, and looks who was silent for too long."""
        socket = self._socket()
        if socket is None or self.closing:
            return
        now = time.monotonic_ns()
        with self._lock:
            peers = [peer for peer in self.peers.values() if peer.fd >= 0]
        idle = socket.heartbeat_ivl * 1_000_000
        for peer in peers:
            if peer.agreement is None or peer.agreement.plain:
                continue
            stream = peer.stream
            try:
                if idle and now - stream.last_sent_ns >= idle // 2 and not stream.queued:
                    stream.send(control(bytes([Control.HEARTBEAT])), force=True)
                if self._is_silent(socket, peer, now):
                    self.emit(EventKind.SILENT, peer.endpoint, peer.address)
                    self._count("silent")
                    self.lost(stream, Broken("the peer was silent for too long"))
            except Broken as error:
                self.lost(stream, error)
        self.schedule_heartbeat()

    def _is_silent(self, socket: SocketMethods, peer: Peer, now: int) -> bool:
        """Unread bytes are life: whoever is in a long step has not read them, that is all."""
        if not peer.heartbeat or socket.heartbeat_timeout <= 0:
            return False
        allowed = max(socket.heartbeat_timeout, 3 * peer.heartbeat) * 1_000_000
        last = max(peer.stream.last_received_ns, peer.since_ns)
        return now - last > allowed and draining.unread(peer.fd) == 0

    # -- for the socket ------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Peers that messages can reach: connected, and with their subscriptions told."""
        pattern = self.pattern
        if isinstance(pattern, (Publisher, Subscriber)):
            return pattern.ready
        return sum(1 for peer in self.peers.values() if not peer.pending)

    def infos(self) -> list[PeerInfo]:
        """Every connected peer, for people."""
        with self._lock:
            return [peer.info() for peer in self.peers.values() if not peer.pending]

    def drop(self, record: Endpoint, linger: float) -> None:
        """Ends what is connected or queued for a released endpoint."""
        with self._lock:
            peers = [p for p in (record.peer, record.queue) if p is not None]
        deadline = time.monotonic() + linger
        draining.flush([p.stream for p in peers if not p.pending], deadline)
        for peer in peers:
            self.lost(peer.stream, Closed(f"{record.address} was disconnected"))

    def resize_buffers(self, send: int, receive: int) -> None:
        """Kernel buffers of connections that are there already."""
        for peer in list(self.peers.values()):
            if peer.fd >= 0:
                draining.resize(peer.fd, send, receive)

    def control_arrived(self, stream: Any, frame: Any) -> None:
        """As `on_control`; a frame that makes no sense ends the connection."""
        try:
            self.on_control(stream, frame)
        except (ProtocolError, Broken) as error:
            self.lost(stream, error)

    def subscribe(self, prefix: bytes, add: bool) -> None:
        """Adds or takes back a subscription of ours and tells every publisher."""
        pattern = self.pattern
        assert isinstance(pattern, Subscriber)
        broken = []
        with self._lock:
            for stream, order in pattern.subscribe(prefix) if add else pattern.unsubscribe(prefix):
                try:
                    stream.send(control(order), force=True)
                except Broken as error:
                    broken.append((stream, error))
        for stream, error in broken:
            self.lost(stream, error)

    def emit(
        self,
        kind: EventKind,
        endpoint: str = "",
        peer: str = "",
        reason: str = "",
        *,
        count: int = 0,
        error: BaseException | None = None,
    ) -> None:
        """Tells the monitors, if there are any."""
        if self.monitors:
            event = Event(kind, endpoint, peer, reason, count, error)
            for monitor in list(self.monitors):
                monitor._put(event)

    def close(self, deadline: float) -> int:
        """Ends everything; how many messages were not sent. `flush` comes before."""
        with self._lock:
            self.closing = True
            endpoints, self.endpoints = self.endpoints, []
            peers = list(self.peers.values())
            timers, self._timers = list(self._timers.values()), {}
            orphans, self.orphans = list(self.orphans), deque()
            self.changed.notify_all()
        for timer in timers:
            timer.cancel()
        for record in endpoints:
            record.close()
        unsent = len(orphans)
        for _, tracker in orphans:
            if tracker is not None:
                tracker._fail(Closed("the socket was closed before the message found a peer"))
        unsent += self.end(peers, deadline)
        with self._lock:
            self.peers.clear()
        self.emit(EventKind.CLOSED)
        return unsent

    def flush(self, deadline: float) -> None:
        """Sends what is queued, until `deadline` (time.monotonic()).

        Endpoints are still tried and bound meanwhile: the peer may yet come.
        """
        while True:
            with self._lock:
                streams = [peer.stream for peer in self.peers.values()]
                waiting = bool(self.orphans) or any(s.queued for s in streams)
            if not waiting:
                return
            draining.flush(streams, min(deadline, time.monotonic() + 0.05))
            if time.monotonic() >= deadline:
                return
            if self.orphans:
                with self._lock:
                    self.changed.wait(0.01)

    def end(self, peers: list[Peer], deadline: float) -> int:
        """Ends these connections in order; how many of their messages were not sent."""
        for peer in peers:
            if peer.confirms_ours and peer.stream.broken is None:
                try:  # the last credit, so that the sender's count of what was lost is exact
                    last = _CREDIT.pack(Control.CREDIT, peer.stream.consumed)
                    peer.stream.send(control(last), force=True)
                except Broken:
                    continue
        draining.flush([peer.stream for peer in peers if not peer.pending], deadline)
        draining.finish([p.fd for p in peers if p.fd >= 0 and p.stream.broken is None], deadline)
        unsent = 0
        closed = Closed("the socket was closed before the peer confirmed the message")
        for peer in peers:
            self._unwatch(peer)
            unsent += peer.stream.close()
            self.context.tally.peer_ended(self.pattern.socket_type.name, peer)
            for _, tracker in peer.trackers:
                tracker._fail(closed)
        return unsent

    def _notify(self) -> None:
        socket = self._socket()
        if socket is not None and not socket.closed:
            socket._notify()

    # -- small things --------------------------------------------------------------------------

    def _owner(self) -> SocketMethods:
        socket = self._socket()
        if socket is None or self.closing:
            raise Closed("the socket is closed")
        return socket

    def _count(self, word: str, count: int = 1) -> None:
        if count:
            with self._lock:
                self.counts[word] = self.counts.get(word, 0) + count

    def _later(self, name: str, seconds: float, call: Any) -> None:
        """One timer of each name at a time."""

        def due() -> None:
            self._timers.pop(name, None)
            call()

        with self._lock:
            if name not in self._timers and not self.closing:
                self._timers[name] = self.context.reactor.call_later(seconds, due)

    def _hello(self) -> Any:
        socket = self._owner()
        extra = {"heartbeat_ms": socket.heartbeat_ivl} if socket.heartbeat_ivl else None
        return make_hello(
            self.pattern.socket_type,
            routing_id=socket.routing_id,
            max_message=socket.largest_message,
            offer=self.context.offer,
            lazy=not socket.immediate,
            extra=extra,
        )

    @staticmethod
    def _transport_options(socket: SocketMethods) -> SocketOptions:
        return SocketOptions(
            send_buffer=max(0, socket.sndbuf),
            receive_buffer=max(0, socket.rcvbuf),
            keepalive=socket.tcp_keepalive,
            keepalive_idle=socket.tcp_keepalive_idle,
            keepalive_interval=socket.tcp_keepalive_intvl,
            keepalive_count=socket.tcp_keepalive_cnt,
        )

    @staticmethod
    def _connect_options(socket: SocketMethods) -> ConnectOptions:
        first = max(0, socket.reconnect_ivl) / 1000.0
        return ConnectOptions(
            connect_timeout=socket.connect_timeout / 1000.0 or 30.0,
            handshake_timeout=_handshake_timeout(socket),
            reconnect_first=first,
            reconnect_limit=socket.reconnect_ivl_max / 1000.0,
        )


def _handshake_timeout(socket: SocketMethods) -> float:
    return float(socket.handshake_ivl / 1000.0 or 30.0)


def _confirms(socket_type: SocketType) -> bool:
    """Whether a peer of this type sends credits."""
    return PATTERNS[socket_type].confirms


def _number(value: Any) -> int:
    return value if type(value) is int and 0 < value < 2**31 else 0


def _take_unsent(stream: Any) -> list[list[OutFrame]]:
    unsent: list[list[OutFrame]] = stream.take_unsent()
    return unsent


def _discard(made: Connected) -> None:
    if made.stream is not None:
        made.stream.close()
    elif made.fd >= 0:
        os.close(made.fd)
