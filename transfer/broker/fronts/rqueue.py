"""The front for rqueue: PUBLISH, SUBSCRIBE, REMOVE, DEREGISTER; and NOTIFICATION to subscribers."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.core.subscriptions import Most
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.broker.fronts.publisher_front import (
    LARGE_FROM,
    SMALL,
    FrontShared,
    PublishingConnection,
    PublishingFront,
    PublishingSettings,
    kept,
)
from transfer.broker.protocols.rqueue import PREAMBLE_SIZE, RqueueHead, Type, encode_notification, read_head
from transfer.transports.errors import ProtocolError, UsageError


@dataclass(frozen=True, slots=True)
class RqueueSettings(PublishingSettings):
    """Settings of the front. max_payload, stall_timeout: see PublishingSettings. max_pending, overflow: see
    Subscriber. subscriptions: topics that one connection may subscribe to at once."""

    max_pending: int = 64 << 20
    overflow: Overflow = Overflow.SPILL
    max_subscriptions: int = 1_000_000


class RqueueConnection(PublishingConnection[RqueueSettings], BrokerSubscriber):
    """One connection: it publishes, and receives what it subscribed to."""

    queued: int = 0

    def __init__(self, shared: FrontShared[RqueueSettings], connection: socket.socket, peer: str) -> None:
        self.limit = shared.settings.max_pending
        self.overflow = shared.settings.overflow
        self.most = Most(patterns=shared.settings.max_subscriptions)
        self._begun = False  # a payload is being sent in pieces
        self._skips = False  # that payload is too large for a NOTIFICATION: its pieces are skipped
        self._behind: deque[Buffer] = deque()  # sent after that payload; `queued` includes it
        super().__init__(shared, connection, peer)

    # -- requests of the peer ----------------------------------------------------------------------------

    def take(self, data: memoryview, position: int) -> int:
        """See PublishingConnection."""
        head = read_head(data, position)
        if head is None:
            return 0
        if head.type is Type.PUBLISH:
            return self._publish(head, data, position)
        if head.type is Type.SUBSCRIBE:
            self._subscribe(head.topic)
        elif head.type is Type.REMOVE:
            self._remove(head.topic)
        elif head.type is Type.DEREGISTER:
            if self._shared.hub.unsubscribe_some(self):
                self.give_way()
                return 0  # the same frame again in the next turn
        else:
            raise ProtocolError("type", "only the broker sends NOTIFICATION")
        return head.size

    def lost(self, reason: str) -> None:
        """See Connection."""
        self._behind.clear()
        self._shared.hub.leave(self)
        super().lost(reason)

    def _publish(self, head: RqueueHead, data: memoryview, position: int) -> int:
        _, topic, size, nbytes = head
        self.check_size(nbytes)
        if nbytes >= LARGE_FROM:
            self.publish_large(Message(topic, (), Front.RQUEUE), nbytes)
            return size
        end = position + size + nbytes
        if end > len(data):
            return 0
        raw = kept(data[position + PREAMBLE_SIZE : end])  # the NOTIFICATION within
        content = raw[size - PREAMBLE_SIZE :]
        self.publish(Message(topic, (content,), Front.RQUEUE, raw=raw), nbytes)
        return end - position

    def _subscribe(self, topic: str) -> None:
        try:
            self._shared.hub.subscribe(self, pattern(Kind.EXACT, topic))
        except UsageError as error:
            raise ProtocolError("refused", str(error)) from error

    def _remove(self, topic: str) -> None:
        self._shared.hub.unsubscribe(self, TopicPattern(Kind.EXACT, topic))

    # -- notifications -----------------------------------------------------------------------------------

    def offer(self, message: Message) -> None:
        """See Subscriber."""
        if self.closed:
            return
        if message.front is Front.RQUEUE and message.raw is not None:
            self._notify(message.raw)
        else:
            head = self._head(message, message.nbytes)
            if head is None:
                return
            if message.nbytes <= SMALL:
                self._notify(b"".join((head, *message.parts)))
            else:
                self._notify(head)
                for part in message.parts:
                    self._notify(part)
        self._shared.counters["notified"] += 1

    def begin(self, message: Message, nbytes: int) -> bool:
        """See Subscriber."""
        if self._begun or self.closed:
            return False
        head = self._head(message, nbytes)
        self._begun, self._skips = True, head is None
        if head is not None:
            self.write(head)
        return True

    def piece(self, data: Buffer) -> None:
        """See Subscriber."""
        if not self._skips:
            self.write(data)

    def finish(self) -> None:
        """See Subscriber."""
        self._begun = False
        if not self._skips:
            self._shared.counters["notified"] += 1
        behind, self._behind = self._behind, deque()
        self.queued -= sum(map(len, behind))
        for data in behind:
            self.write(data)

    def on_drained(self) -> None:
        """See Connection."""
        self._shared.hub.on_drained(self)

    def _head(self, message: Message, nbytes: int) -> bytes | None:
        """Returns the bytes before the content; None: its length exceeds 32 bits, and the message is
        dropped."""
        try:
            return encode_notification(message.topic, nbytes)
        except UsageError:
            self.dropped += 1
            self._shared.counters["too_large"] += 1
            return None

    def _notify(self, data: Buffer) -> None:
        if self._begun:
            self._behind.append(data)
            self.queued += len(data)
        else:
            self.write(data)


class RqueueFront(PublishingFront[RqueueSettings]):
    """All connections of rqueue's protocol. See PublishingFront."""

    #: notified: messages that subscribers received. too_large: messages larger than a NOTIFICATION can be
    names = (*PublishingFront.names, "notified", "too_large")

    def connected(self, connection: socket.socket, peer: str) -> RqueueConnection:
        """See PublishingFront."""
        return RqueueConnection(self._shared, connection, peer)
