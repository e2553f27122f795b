"""New connections: the pattern admits them, the reactor watches them, the core gets their streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.patterns import PATTERNS, Pair, Publisher, Subscriber
from transfer.sockets import drain
from transfer.sockets.connections.control import REPLACED, TAKEN
from transfer.sockets.connections.state import control
from transfer.sockets.connections.topic_positions import BEGIN, LogId, encode_offline, log_of
from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Endpoint, Peer
from transfer.transports.address import BEGINS
from transfer.transports.connect.connection import Connected
from transfer.transports.core.wire import Control, SocketType
from transfer.transports.errors import Broken, Closed, Fatal, HandshakeError, ProtocolError, TransferError
from transfer.transports.handshake.hello import PLACE_TAKEN, is_same
from transfer.transports.reactor import EDGE, PEER_CLOSED, READABLE

if TYPE_CHECKING:
    from transfer.sockets.connections.connection_loss import ConnectionLoss
    from transfer.sockets.connections.control import Controls
    from transfer.sockets.connections.log_reader import LogReader
    from transfer.sockets.connections.no_peer import NoPeer
    from transfer.sockets.connections.orphans import Orphans
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket
    from transfer.transports.handshake.hello import Agreement, Hello

logger = logging.getLogger("transfer")

#: seconds that a new connection waits for the unread messages of the peer's previous one
_UNREAD_TIMEOUT = 5.0
_CAME_BACK = "the peer came back by a new connection"


class ConnectionAdmission:
    """The beginning of a connection, in the reactor's thread."""

    def __init__(
        self,
        state: ConnectionState,
        no_peer: NoPeer,
        log_reader: LogReader,
        orphans: Orphans,
        loss: ConnectionLoss,
        control: Controls,
    ) -> None:
        self._state, self._no_peer, self._log_reader = state, no_peer, log_reader
        self._orphans, self._loss, self._control = orphans, loss, control
        self._pattern, self._context, self._lock = state.pattern, state.context, state.lock

    def connected(self, record: Endpoint, made: Connected) -> None:
        """Takes a connection from the reactor, after its handshake."""
        socket = self._state.socket()
        if socket is None or self._state.closing or (record.outgoing and record not in self._state.endpoints):
            made.discard()
            return
        if record.outgoing and record.connector is None:  # `connect` has not returned yet
            try:
                self._context.reactor.call_soon(self.connected, record, made, otherwise=made.discard)
            except Closed:  # the context is closing
                made.discard()
            return
        queue, record.queue = record.queue, None
        if queue is not None:
            socket._detach(queue.stream)
        if record.address.begin:  # the publisher needs the position of the previous one
            self._end_connections(lambda other: not other.pending and other.source is record, _CAME_BACK)
        try:
            peer, replaced, refused = self._admit(socket, record, made, queue)
        except (HandshakeError, OSError) as error:
            if isinstance(error, HandshakeError):
                self._refuse_peer(record, made, error)
            else:
                self._drop(record, made, HandshakeError("tls", error.strerror or str(error)))
            if queue is not None:
                record.queue = queue
                self._state.attach(socket, queue.stream)
            return
        except Closed:
            made.discard()
            return
        if refused is not None:
            record.peer = peer if record.outgoing else None
            logger.error("%s ends: %s", peer.address, refused, exc_info=refused.__cause__)
            self._loss.lost(peer.stream, refused)
            return
        try:
            self._begin(socket, record, peer, replaced, queue)
        except Exception as error:  # the peer owns the connection, which ends with it
            # A thread that closes the socket or the context may be closing its descriptor.
            if not (self._state.closing or self._context.closed):
                logger.exception("the connection to %s cannot be used", peer.address)
            self._loss.lost(peer.stream, error)

    def _begin(self, socket: Socket, record: Endpoint, peer: Peer, replaced: Any, queue: Peer | None) -> None:
        """Opens the way for messages in both directions."""
        if record.outgoing:
            record.peer = peer
            record.attempts, record.error = 0, None
        if replaced is not None:
            self._send_replaced(replaced)
            self._loss.lost(replaced, Broken(_CAME_BACK))
        self._end_earlier(peer)
        # Watched before it is attached: the thread that finds it broken afterwards also ends the watch.
        self._watch(peer)
        moves = queue is not None and queue is not peer
        with self._orphans.in_order() if moves else nullcontext():
            if not self._state.attach(socket, peer.stream):
                return  # `close` knows the peer already and ends it
            if queue is not None and moves:
                self._loss.hand_over(queue)
        self._complete_admission(socket, peer)
        if record.follower is not None:
            record.follower.connected(record, peer)

    def _end_earlier(self, peer: Peer) -> None:
        """Ends the earlier connection of the same peer, which the other side has given up: its messages are
        received before those of the new one."""

        def is_earlier(other: Peer) -> bool:
            return other is not peer and not other.pending and other.origin == peer.origin

        if peer.origin is not None:
            with self._lock:
                same = self._state.of_same_origin(peer)
            self._end_connections(is_earlier, _CAME_BACK, same)

    def _end_connections(
        self, is_earlier: Callable[[Peer], bool], reason: str, among: list[Peer] | None = None
    ) -> None:
        """among: None: all."""
        with self._lock:
            looked_at = self._state.peers.values() if among is None else among
            earlier = [other.stream for other in looked_at if is_earlier(other)]
        for stream in earlier:
            self._loss.lost(stream, Broken(reason))
        # Another thread may be handling the end of the previous connection.
        self._state.changed.wait_for(
            lambda: not any(map(is_earlier, self._state.ending_peers)), _UNREAD_TIMEOUT
        )

    def prepare_subscribe(self, prefix: bytes) -> None:
        """Ends the connections whose messages for a new subscription may have been dropped. Their publishers
        count these as received; the next connection begins at the position."""
        self._end_connections(lambda peer: self._has_unsubscribed(peer, prefix), "this SUB subscribes again")

    def _has_unsubscribed(self, peer: Peer, prefix: bytes) -> bool:
        if not isinstance(self._pattern, Subscriber) or not peer.unsubscribed:
            return False
        return prefix not in self._pattern.subscriptions and any(
            one.startswith(prefix) or prefix.startswith(one) for one in peer.unsubscribed
        )

    def _complete_admission(self, socket: Socket, peer: Peer) -> None:
        """Completes the admission: messages can reach the peer. Wakes the threads that wait for that."""
        peer.attached = True
        if peer.foreign and not self._state.receives:
            peer.stream.on_readable = partial(self._control.read, peer)
            self._control.read(peer)  # data that arrived before
        if carrier := getattr(peer.stream, "carrier", None):
            carrier.watch(partial(self._loss.lost, peer.stream))
        self._state.count("connected")
        self._explain_choice(peer)
        self._orphans.give()
        socket._update_fast_paths()
        with self._lock:
            self._state.changed.notify_all()
        socket._notify()
        self._state.emit(EventKind.CONNECTED, peer.endpoint, peer.address, peer.socket_type.name)

    def _admit(
        self, socket: Socket, record: Endpoint, made: Connected, queue: Peer | None
    ) -> tuple[Peer, Any, ProtocolError | None]:
        """Makes the stream and attaches it to the pattern: (the peer, the stream that it replaces, why the
        pattern refuses it). Raises HandshakeError, OSError or Closed; nothing has changed then."""
        remote = made.agreement.remote
        features = made.agreement.features
        with self._lock:
            if self._state.closing:
                raise Closed("the socket is closed")
            if queue is not None:
                self._pattern.detach(queue.stream)
            credits = self._pattern.confirms and "credit" in features
            try:
                self._check(socket, record, remote)
                stream = self._stream_for(socket, made, queue, credits)
            except (HandshakeError, OSError):
                if queue is not None:
                    self._pattern.attach(queue.stream, queue.socket_type)
                raise
            peer = queue
            if peer is None or made.stream is not None:
                peer = Peer(stream, record, remote.socket_type)
            stream.peer = peer
            peer.socket_type = remote.socket_type
            peer.address = made.peer
            peer.agreement = made.agreement
            peer.fd = made.fd
            peer.foreign = made.stream is not None
            peer.confirms = "credit" in features and _confirms(remote.socket_type)
            peer.since_ns = time.monotonic_ns()
            peer.confirms_ours = credits
            peer.heartbeat = _number(remote.extra.get("heartbeat_ms"))
            peer.log = log_of(remote) if record.address.begin else None
            begins = remote.extra.get(BEGIN)
            peer.catch_up = begins if isinstance(begins, str) and begins in BEGINS else ""
            replaced = refused = None
            try:
                replaced = self._pattern.attach(stream, remote.socket_type, remote.routing_id)
                stream.identity = self._pattern.plain_identity(stream)
            except Exception as error:  # noqa: BLE001 - a pattern of the program may raise anything
                refused = ProtocolError("pattern", f"this socket's pattern does not take the peer: {error}")
                refused.__cause__ = error
            self._state.add(peer)
            if isinstance(self._pattern, Subscriber):
                self._introduce(self._pattern, peer)
            elif isinstance(self._pattern, Publisher) and socket.xpub_welcome_msg:
                with suppress(Broken):  # the thread that reads the stream finds its end
                    stream.send([(0, 0, None, None, socket.xpub_welcome_msg)])
        return peer, replaced, refused

    def _stream_for(self, socket: Socket, made: Connected, queue: Peer | None, credits: bool) -> Any:
        """Returns the connection's stream: its own, the queue's, or a new one. Raises OSError if the peer has
        sent more than its handshake; nothing has changed then."""
        if made.stream is not None:
            stream = made.stream
            self._state.limit(socket, stream)
        elif queue is not None:
            stream = queue.stream
            stream.carrier, stream.plain = made.carrier, made.agreement.plain
            stream.open(made.fd, made.channel)
        else:
            stream = self._state.new_stream(socket, made.fd, credits, made.channel)
            stream.carrier, stream.plain = made.carrier, made.agreement.plain
        stream.credits = credits
        return stream

    def check_admission(self, record: Endpoint, agreement: Agreement) -> None:
        """Checks that a peer can be admitted. Its handshake is not over yet, so no message can be lost.
        Runs in the reactor's thread, like the admission that follows. Raises HandshakeError."""
        socket = self._state.socket()
        if socket is None:
            return
        if isinstance(self._pattern, Pair):
            self._end_given_up(record, agreement.remote)
        with self._lock:
            queue = record.queue
            if queue is not None:  # the peer replaces it
                self._pattern.detach(queue.stream)
            try:
                self._check(socket, record, agreement.remote)
            finally:
                if queue is not None:
                    self._pattern.attach(queue.stream, queue.socket_type)

    def _end_given_up(self, record: Endpoint, remote: Hello) -> None:
        """Ends the earlier connection of a peer that connects again: its end has not arrived yet."""
        with self._lock:
            earlier = [
                peer.stream
                for peer in self._state.peers.values()
                if peer.source is record and peer.agreement and is_same(peer.agreement.remote, remote)
            ]
        for stream in earlier:
            self._loss.lost(stream, Broken(_CAME_BACK))

    def check_handshake(self, record: Endpoint) -> None:
        """Lets a PAIR shake hands with one peer at a time: a second one would lose the messages that it sends
        right after its handshake. Runs in the reactor's thread. Raises HandshakeError."""
        if not isinstance(self._pattern, Pair):
            return
        with self._lock:
            there = any(not peer.pending for peer in self._state.peers.values())
            others = [other.connector for other in self._state.endpoints if other is not record]
        if there or any(getattr(other, "state", "") == "shaking hands" for other in others):
            raise HandshakeError("pair_busy", "this PAIR has its peer already", hint=self._pattern.one_to_one)

    def _check(self, socket: Socket, record: Endpoint, remote: Hello) -> None:
        most = self._context.credentials.security.max_connections
        if not record.outgoing and len(self._state.peers) >= most:
            raise HandshakeError("busy", f"this side has {most} connections and takes no more")
        self._pattern.check(remote.socket_type, remote.routing_id)
        self._check_log(record, log_of(remote))
        if not socket.router_handover:
            self._check_identity(remote)

    def _check_log(self, record: Endpoint, log: LogId | None) -> None:
        """Checks that a publisher has a log if `?begin=` needs one, and that no other connection of this
        socket receives the same log, which would double each message. Raises HandshakeError."""
        if log is None:
            if record.address.begin:
                hint = "?begin= is for what a broker publishes"
                raise HandshakeError("no_log", "the publisher has no log", hint=hint)
            return
        for peer in self._state.peers.values():
            if peer.source is record or not (record.address.begin or peer.source.address.begin):
                continue
            its = log_of(peer.agreement.remote) if peer.agreement is not None else None
            if its is not None and its.name == log.name and not drain.has_ended(peer.fd):
                raise HandshakeError(
                    "duplicate_log",
                    f"this socket receives the same log from {peer.endpoint} already",
                    hint="connect once to each broker; a copy of a broker's folder counts as the same broker",
                )

    def _check_identity(self, remote: Hello) -> None:
        """Checks that no other live peer has this identity. Raises HandshakeError."""
        there = self._state.peers.get(self._pattern.holder(remote.routing_id))
        if there is None or there.agreement is None or is_same(there.agreement.remote, remote):
            return
        if not drain.has_ended(there.fd):
            raise HandshakeError(
                TAKEN,
                f"another peer has the identity {remote.routing_id!r}",
                hint="router_handover lets the newest connection take it over",
            )

    def _introduce(self, pattern: Subscriber, peer: Peer) -> None:
        stream = peer.stream
        orders: list[bytes] = pattern.introduce(stream)
        if self._log_reader.positions is not None and peer.log is not None:
            self._log_reader.record_given(self._state.socket())
            name, last_seen, offline = peer.log.name, peer.source.last_seen, []
            if not self._log_reader.positions.connected(peer.log) and last_seen is not None:
                offline.append(encode_offline(time.monotonic() - last_seen))
            orders = [self._log_reader.positions.subscribe_order(name, order) for order in orders]
            orders = [*offline, *self._log_reader.positions.control_frames(name), *orders]
        try:
            for order in orders:
                stream.send(control(order), force=True)
        except Broken:  # the thread that reads the stream finds its end
            logger.debug("a publisher disconnected before it received the subscriptions")

    def _drop(self, record: Endpoint, made: Connected, error: HandshakeError) -> None:
        """Ends a connection that cannot have a stream: TLS brought more data than the handshake."""
        self._state.count(f"refused:{error.reason}")
        self._state.emit(EventKind.ACCEPT_FAILED, str(record.address), made.peer, error.reason, error=error)
        made.discard()
        if record.connector is not None:
            record.connector.lost()

    def failed(self, record: Endpoint, error: TransferError) -> None:
        """Records a failed attempt to connect. The connector tries again, except after Fatal."""
        record.attempts += 1
        lacks, record.error = (
            self._no_peer.lacks(record, error),
            self._no_peer.clearer_error(record.error, error),
        )
        if record.follower is not None:
            record.follower.record.error = record.error
        if isinstance(error, Fatal):
            self._state.fatal = error
            socket = self._state.socket()
            if socket is not None:
                socket._update_fast_paths()
                socket._notify()
        if isinstance(error, (HandshakeError, Fatal)):
            reason = getattr(error, "reason", "policy")
            self._no_peer.warn_of(f"connecting to {record.address}", error, outgoing=True, lasts=lacks)
            if reason in PLACE_TAKEN:
                self._state.count(f"refused:{reason}")
                self._state.emit(EventKind.REFUSED, str(record.address), reason=reason, error=error)
            else:
                self._state.count(f"handshake:{reason}")
                self._state.emit(EventKind.HANDSHAKE_FAILED, str(record.address), reason=reason, error=error)
        with self._lock:
            self._state.changed.notify_all()

    def _refuse_peer(self, record: Endpoint, made: Connected, error: HandshakeError) -> None:
        """Refuses a peer after its hello was valid, and sends it the reason."""
        if record.outgoing and error.reason not in PLACE_TAKEN:
            self.failed(record, error)
        else:
            self._state.count(f"refused:{error.reason}")
            self._state.emit(
                EventKind.ACCEPT_FAILED, str(record.address), made.peer, error.reason, error=error
            )
        if made.stream is not None:
            made.stream.close()
        elif made.agreement.plain:
            made.discard()  # a plain peer does not know this message
        elif made.fd >= 0:
            refusal = bytes([Control.REFUSED]) + error.reason.encode()
            stream = self._context.core.Stream(
                made.fd,
                int(self._pattern.socket_type.on_wire),
                self._context.flusher,
                self._context.pool,
                channel=made.channel,
            )
            try:
                stream.send(control(refusal), force=True)
                stream.flush()
            except Broken:
                logger.debug("%s disconnected before it was refused", made.peer)
            stream.close()
        if record.connector is not None:
            record.connector.lost()

    def _send_replaced(self, stream: Any) -> None:
        """Informs the replaced peer, so that it does not connect again and replace the new one in turn."""
        try:
            stream.send(control(bytes([Control.REFUSED]) + REPLACED), force=True)
            stream.flush()
        except Broken:
            logger.debug("the replaced connection has ended already")

    def _watch(self, peer: Peer) -> None:
        """Watches the connection: the reactor reads what a send-only socket receives, and notices the peer's
        end even while the application is busy."""
        if peer.foreign:
            self._watch_foreign(peer)
        elif self._state.receives:
            events = PEER_CLOSED | EDGE
            if events != EDGE and PEER_CLOSED:
                self._context.reactor.register(peer.fd, events, partial(self._control.ended, peer))
        else:
            peer.watched = peer.stream.fileno()
            self._context.reactor.register(peer.watched, READABLE, partial(self._control.read, peer))

    def _watch_foreign(self, peer: Peer) -> None:
        """Watches the control connection of a foreign stream, which carries control frames and reports its
        end. If the application does not receive, the reactor watches the stream's descriptors, too."""
        if peer.fd >= 0:
            self._context.reactor.register(peer.fd, READABLE, partial(self._control.read_control, peer))
        if not self._state.receives:
            for fd in self._state.share_foreign(peer, 1):
                self._context.reactor.register(fd, READABLE, partial(self._control.read_sharing, fd))

    def _explain_choice(self, peer: Peer) -> None:
        """Logs once why a better transport is not used."""
        agreement = peer.agreement
        if agreement is None:
            return
        for name in agreement.choice.unused:
            self._state.count(f"unused:{name}")
            self._context.log_once(
                f"{name} is there on both sides and not used: {agreement.choice.reason} "
                f"(decided by {self._context.transport_config.protocol_source})"
            )
        if agreement.choice.fallback:
            choice = agreement.choice
            self._state.count(f"fallback:{choice.wanted}:{choice.transport}:{choice.word}")
            self._context.log_once(f"fell back to {choice.transport}: {choice.reason}")


def _confirms(socket_type: SocketType) -> bool:
    """Whether a peer of this type sends credits."""
    return PATTERNS[socket_type].confirms


def _number(value: Any) -> int:
    return value if type(value) is int and 0 < value < 2**31 else 0
