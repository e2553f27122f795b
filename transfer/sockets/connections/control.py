"""Control frames, and what the reactor finds on connections while the application is busy."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.patterns import Publisher, Subscriber, XPublisher
from transfer.patterns.pub_sub import decode_order, encode_order
from transfer.sockets.connections.state import control
from transfer.sockets.connections.topic_positions import check_log_prefix, decode_offline, decode_position
from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Peer
from transfer.transports.core.wire import Control, Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, TransferError
from transfer.transports.reactor import READABLE

if TYPE_CHECKING:
    from transfer.sockets.connections.connection_loss import ConnectionLoss
    from transfer.sockets.connections.credits import Credits
    from transfer.sockets.connections.log_reader import LogReader
    from transfer.sockets.connections.state import ConnectionState

#: the reason for which a ROUTER refuses a connection after a newer one with the same identity
REPLACED = b"replaced"
#: the reason for which it refuses a connection whose identity another one has
TAKEN = "identity"
_CREDIT = bytes([Control.CREDIT])
#: bytes of acknowledged subscriptions that may wait for a peer, in addition to its messages
_ANSWERS = 16 << 20
_SUBSCRIBES = (Control.SUBSCRIBE, Control.RESUBSCRIBE)
_OF_SUBSCRIPTIONS = (*_SUBSCRIBES, Control.UNSUBSCRIBE, Control.SUBSCRIBED)
_OF_POSITIONS = (Control.POSITION, Control.OFFLINE, Control.SKIPPED, Control.WITHHELD)
#: prefixes of one connection that are kept; more of them count as all topics
_MAX_UNSUBSCRIBED = 1000
#: control frames of one peer that the reactor reads before it serves other peers
TURN_FRAMES = 64


class Controls:
    """Credits, subscriptions, positions and refusals; not on the path of messages."""

    def __init__(
        self, state: ConnectionState, credits: Credits, log_reader: LogReader, loss: ConnectionLoss
    ) -> None:
        self._state, self._credits, self._log_reader, self._loss = state, credits, log_reader, loss
        self._pattern, self._context, self._lock = state.pattern, state.context, state.lock

    def read(self, peer: Peer, events: int = READABLE) -> None:
        """Reads control frames and the peer's end on a send-only socket, a limited number at a time."""
        if peer.read_later:
            return
        stream = peer.stream
        try:
            with peer.reading:
                for _ in range(TURN_FRAMES):
                    frames = stream.receive()
                    if frames is None:
                        return
                    if not frames[0].flags & Flag.CONTROL:
                        if self._state.upstream is not None and self._state.upstream.admits(peer):
                            self._state.upstream.take(stream, frames)
                            continue
                        raise ProtocolError(
                            "flags", f"data for a {self._pattern.socket_type.name}, which only sends"
                        )
                    self.on_control(stream, frames[0])
        except (Broken, ProtocolError) as error:
            self._loss.lost(stream, error)
            return
        peer.read_later = True
        self._context.reactor.call_soon(self._read_on, peer)

    def _read_on(self, peer: Peer) -> None:
        peer.read_later = False
        if self._state.peers.get(peer.stream) is peer:
            self.read(peer)

    def read_control(self, peer: Peer, events: int) -> None:
        """Reads the control connection of a foreign stream: control frames, and the peer's end."""
        try:
            with peer.reading:
                for frame in peer.stream.control_ready():
                    self.on_control(peer.stream, frame)
        except (Broken, ProtocolError) as error:
            self._loss.lost(peer.stream, error)

    def read_sharing(self, fd: int, events: int) -> None:
        """Reads the foreign streams of a send-only socket that share a readable descriptor."""
        for peer in list(self._state.peers.values()):
            if peer.foreign and fd in peer.stream.wait_fds:
                self.read(peer)

    def ended(self, peer: Peer, events: int) -> None:
        """Handles a peer that closed its side. The application still reads what the peer sent before, and
        then finds the end; only a new connection need not wait for that."""
        self._context.reactor.unregister(peer.fd)
        peer.ended = True
        kind = self._pattern.socket_type
        if kind in (SocketType.SUB, SocketType.XSUB, SocketType.PULL) and peer.source.peer is peer:
            peer.source.peer = None
            if peer.source.connector is not None:
                peer.source.connector.lost()
        socket = self._state.socket()
        if socket is not None:
            # Another thread may close the socket or the stream now: then there is nothing to find.
            with suppress(TransferError):  # nor does a message that cannot be read now end this
                socket._readable()  # finds the end, unless data precedes it

    def arrived(self, stream: Any, frame: Any) -> None:
        """As `on_control`; an invalid frame ends the connection."""
        try:
            self.on_control(stream, frame)
        except (ProtocolError, Broken) as error:
            self._loss.lost(stream, error)

    def on_control(self, stream: Any, frame: Any) -> None:
        """Handles a control frame. Raises ProtocolError for an invalid one."""
        data = bytes(frame.data)
        if data[:1] == _CREDIT:
            if isinstance(sender := stream.peer, Peer):  # a lost one too, until it is settled
                self._credits.on_credit(sender, data)
            return
        peer = self._state.peers.get(stream)
        if peer is None or not data:
            return
        kind = data[0]
        if kind in _OF_SUBSCRIPTIONS:
            self._on_subscription(peer, data)
        elif kind in _OF_POSITIONS:
            self._on_position_control(peer, kind, data)
        elif kind == Control.REFUSED:
            self._credits.refused(peer, data)
            assert peer.refusal is not None
            reason = peer.refusal[0]
            self._state.count(f"refused:{reason}")
            self._state.emit(EventKind.REFUSED, peer.endpoint, peer.address, reason)
            if reason == TAKEN:
                self._context.log_once(
                    f"{peer.endpoint} refuses this socket, and is tried again: another one has its routing_id"
                )
            if data[1:] == REPLACED and peer.source.connector is not None:
                peer.source.connector.close()

    def _on_subscription(self, peer: Peer, data: bytes) -> None:
        kind, number, prefix = decode_order(data)
        pattern, stream = self._pattern, peer.stream
        source = self._state.catch_up_source if peer.catch_up else None
        if isinstance(pattern, Subscriber) and kind == Control.SUBSCRIBED:
            self._log_reader.acknowledged(pattern, peer, number)
        elif isinstance(pattern, Publisher) and kind in _SUBSCRIBES:
            with self._lock:
                added = pattern.subscribe(stream, prefix)
            if not added:
                raise ProtocolError("control", "more subscriptions than one peer may have")
            if source is not None:
                source.subscribe(peer, number, prefix, kind == Control.RESUBSCRIBE)
            else:
                if stream.queued_bytes > max(stream.send_high_water_bytes, _ANSWERS) + _ANSWERS:
                    raise ProtocolError("control", "the peer subscribes, and does not read the answers")
                if pattern.applies_subscriptions:
                    stream.subscribe(prefix)
                stream.send(control(encode_order(Control.SUBSCRIBED, number)), force=True)
            self._state.emit(EventKind.SUBSCRIBED, peer.endpoint, peer.address)
        elif isinstance(pattern, Publisher) and kind == Control.UNSUBSCRIBE:
            with self._lock:
                pattern.unsubscribe(stream, prefix)
            if source is not None:
                source.unsubscribe(peer, prefix)
            elif pattern.applies_subscriptions:
                stream.unsubscribe(prefix)
            self._state.emit(EventKind.UNSUBSCRIBED, peer.endpoint, peer.address)
        else:
            raise ProtocolError("control", f"control {kind} makes no sense to a {pattern.socket_type.name}")
        if self._state.upstream is not None:
            self._state.upstream.deliver()
        with self._lock:
            self._state.changed.notify_all()

    def _on_position_control(self, peer: Peer, kind: int, data: bytes) -> None:
        source = self._state.catch_up_source if peer.catch_up else None
        if source is not None and kind == Control.POSITION:
            source.set_position(peer, *decode_position(data))
        elif source is not None and kind == Control.OFFLINE:
            source.set_offline(peer, decode_offline(data))
        elif self._log_reader.positions is not None and peer.log is not None and kind != Control.OFFLINE:
            self._log_reader.on_position(peer, kind, data)
        else:
            ours = self._pattern.socket_type.name
            raise ProtocolError("control", f"control {kind} makes no sense to this {ours}")

    def subscribe(self, prefix: bytes, add: bool) -> None:
        """Adds or removes a subscription and sends the change to every publisher. Of an XPUB in manual mode:
        for the peer of which this thread received the last message."""
        pattern = self._pattern
        stream: Any
        if isinstance(pattern, XPublisher):
            stream = self._state.owner()._newest_stream
            with self._lock:
                if stream in self._state.peers:
                    (stream.subscribe if add else stream.unsubscribe)(prefix)
            return
        assert isinstance(pattern, Subscriber)
        if add and any(record.address.begin for record in list(self._state.endpoints)):
            check_log_prefix(prefix)
        broken: list[tuple[Any, Broken]] = []
        with self._lock:
            for stream, order in pattern.subscribe(prefix) if add else pattern.unsubscribe(prefix):
                try:
                    stream.send(control(order), force=True)
                except Broken as error:
                    broken.append((stream, error))
            for peer in self._state.peers.values() if not add and prefix not in pattern.subscriptions else ():
                if peer.log is not None:
                    peer.unsubscribed.add(prefix if len(peer.unsubscribed) < _MAX_UNSUBSCRIBED else b"")
        for stream, reason in broken:
            self._loss.lost(stream, reason)
