"""What a SUB receives of publishers' logs: where it is in each topic, and what is missing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.patterns import Subscriber
from transfer.patterns.pub_sub import decode_order
from transfer.sockets.connections.topic_positions import (
    MAX_LATE_GAP,
    TopicPositions,
    decode_position,
    decode_skipped,
    decode_withheld,
)
from transfer.sockets.peer import Peer
from transfer.transports.core.wire import Control, Flag
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket
    from transfer.transports.core.contract import Frame


class LogReader:
    """Keeps the positions of a SUB that connects with `?begin=`. positions: None until it does."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self.positions: TopicPositions | None = None
        #: the thread that received last from a log, and whether other threads did before
        self._last_receiver, self._several_receive = 0, False

    def record(self, stream: Any, frames: Sequence[Frame]) -> None:
        """Records a message that the program has, or receives before anything else."""
        if self.positions is None:
            return
        missed, thread = self.positions.record(stream, frames), threading.get_ident()
        if thread != self._last_receiver:
            self._several_receive, self._last_receiver = self._last_receiver != 0, thread
        if missed:
            self._state.count("missed", missed)
            if missed < 0 or (missed <= MAX_LATE_GAP and self._several_receive):
                return  # another receiving thread was faster
            text = "%s: %d messages of topic %r were removed from the log before they could be received"
            where, topic = stream.peer.endpoint, (frames[0].topic or b"").decode(errors="replace")
            self._state.throttled.log(logging.WARNING, "missed", text, where, missed, topic)

    def record_given(self, socket: Socket | None) -> None:
        """Records what the program receives before anything else: messages that its threads have taken from
        the core, and those that the core holds."""
        if socket is None:
            return
        for thread in socket._threads.all():
            if (given := thread.given) is not None:
                self.record(*given)
        for found in socket._found():
            self.record(*found)

    def acknowledged(self, pattern: Subscriber, peer: Peer, number: int) -> None:
        """Handles a publisher's acknowledgement of the subscription with this number."""
        pattern.acknowledged(peer.stream, number)
        if self.positions is not None and peer.log is not None and pattern.is_held(peer.stream):
            self.positions.confirm(peer.log.name, pattern.subscriptions)
            peer.source.caught_up = True

    def on_position(self, peer: Peer, kind: int, data: bytes) -> None:
        """Handles a publisher's position in a topic, or messages that it left out. Raises ProtocolError."""
        assert self.positions is not None
        if kind == Control.POSITION:
            self.positions.reset(peer, *decode_position(data))
            return
        if kind == Control.WITHHELD:
            self.positions.withhold(peer, *decode_withheld(data))
            return
        number, nbytes, topic = decode_skipped(data)
        if self.positions.skip(peer, number, topic):
            self._state.count("missed")
            text = "%s: a message of topic %r has %d bytes, more than maxmsgsize: raise it to receive such"
            name = topic.decode(errors="replace")
            self._state.throttled.log(logging.WARNING, "skipped", text, peer.endpoint, name, nbytes)

    def read_late(self, peer: Peer, frames: Sequence[Any]) -> None:
        """Handles messages and control frames that a connection received before its end, in order."""
        data = bytes(frames[0].data[:1]) if frames[0].flags & Flag.CONTROL else b""
        pattern = self._state.pattern
        if not data:
            if self.is_subscribed(frames):
                self.record(peer.stream, frames)
            return
        if not isinstance(pattern, Subscriber) or self.positions is None or peer.log is None:
            return
        with suppress(ProtocolError):  # the connection has ended anyway
            if data[0] in (Control.POSITION, Control.SKIPPED, Control.WITHHELD):
                self.on_position(peer, data[0], bytes(frames[0].data))
            elif data[0] == Control.SUBSCRIBED:
                self.acknowledged(pattern, peer, decode_order(bytes(frames[0].data))[1])

    def is_subscribed(self, frames: Sequence[Any]) -> bool:
        topic = frames[0].topic
        return (
            topic is None
            or not isinstance(self._state.pattern, Subscriber)
            or self._state.pattern.subscriptions.matches(topic)
        )
