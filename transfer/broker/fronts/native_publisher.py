"""The PUB socket of the native front."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import transfer
from transfer.broker.core.message import Message
from transfer.broker.delivery.subscriber import BrokerSubscriber, Overflow
from transfer.broker.fronts.native_catch_up import CatchUpSubscribers
from transfer.broker.fronts.native_frames import HELD_FROM, parts_of, unreadable
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.hub import Hub


class NativePublisher(BrokerSubscriber):
    """The PUB socket: it knows the subscriptions, and counts what it drops for slow subscribers.

    It gathers a large message that comes in pieces, one at a time; another one meanwhile is read from the
    log, if its topic is kept. largest: bytes of a gathered message; a larger one is not sent, and counts as
    dropped if there are subscribers. catch_up: subscribers that it does not serve itself.
    """

    passive = True
    limit = 1 << 62
    overflow = Overflow.SPILL
    queued = 0

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        context: transfer.Context,
        endpoint: str,
        largest: int,
    ) -> None:
        self._counts = hub.counts
        self.socket = context.socket(transfer.PUB)
        self.catch_up = CatchUpSubscribers(hub, loop, self.socket, hub.counts)
        self.socket.bind(endpoint)
        self.endpoint: str = self.socket.last_endpoint
        self._largest = largest
        self._gathered: tuple[Message, bytearray] | None = None
        self._wanted = False  # whether the gathered bytes are

    @property
    def idle(self) -> bool:
        return not self.socket.has_peers

    @property
    def programs(self) -> int:
        found: int = self.socket.subscribers()
        return found

    def listening(self, topic: str) -> int:
        found: int = self.socket.subscribers(topic)
        return found

    def offer_many(self, messages: Sequence[Message]) -> None:
        if self.socket.has_peers:
            for message in messages:
                self.offer(message)

    def offer(self, message: Message) -> None:
        if not self.socket.has_peers:
            return
        try:
            (_, meta, flags, data), *rest = parts_of(message)
        except ProtocolError as error:
            unreadable(message, error, self._counts)
            self.dropped += 1
            return
        copy = None if message.nbytes < HELD_FROM else False
        self.socket.send_frames([(message.topic.encode(), meta, flags, data), *rest], copy=copy)

    def begin(self, message: Message, nbytes: int) -> bool:
        if self._gathered is not None:
            return False
        self._wanted = bool(nbytes) and not self.idle and nbytes <= self._largest
        if nbytes > self._largest and not self.idle:
            self.dropped += 1
        self._gathered = message, bytearray()
        return True

    def piece(self, data: Buffer) -> None:
        if self._gathered is not None and self._wanted:
            self._gathered[1].extend(data)

    @property
    def accepts_spliced(self) -> bool:
        """Whether bytes may stay in a pipe: nothing is gathered."""
        return self._gathered is None or not self._wanted

    def finish(self) -> None:
        if self._gathered is None:
            return
        (message, data), self._gathered = self._gathered, None
        if data:
            payload = memoryview(data).toreadonly()
            self.offer(Message(message.topic, (payload,), message.front, message.head, message.headers))

    def close(self, reason: str) -> None:
        """Drops the message that was begun, of which nothing was sent yet: the rest will not come."""
        self._gathered = None
