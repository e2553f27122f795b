"""The PUB socket of the broker's own front."""

from __future__ import annotations

from typing import TYPE_CHECKING

import transfer
from transfer.broker.fronts.own_parts import HELD_FROM, parts_of
from transfer.broker.message import Message
from transfer.broker.subscriber import Overflow, Subscriber

if TYPE_CHECKING:
    from transfer.broker.message import Buffer


class OwnPublisher(Subscriber):
    """The PUB socket: it knows who wants what, and counts what it drops for those who are slow.

    A large message that comes in pieces is gathered first, one at a time; another one meanwhile is read from
    the log, if its topic is kept. largest: bytes of a message that is gathered.
    """

    passive = True
    limit = 1 << 62
    overflow = Overflow.SPILL
    queued = 0

    def __init__(self, context: transfer.Context, endpoint: str, largest: int) -> None:
        self.socket = context.socket(transfer.PUB)
        self.socket.bind(endpoint)
        self.endpoint: str = self.socket.last_endpoint
        self._pool = context.pool
        self._largest = largest
        self._gathered: tuple[Message, memoryview] | None = None
        self._at = 0

    def offer(self, message: Message) -> None:
        if not self.socket.has_peers:
            return
        (_, meta, flags, data), *rest = parts_of(message)
        copy = None if message.nbytes < HELD_FROM else False
        self.socket.send_frames([(message.topic.encode(), meta, flags, data), *rest], copy=copy)

    def begin(self, message: Message, nbytes: int) -> bool:
        if self._gathered is not None or nbytes > self._largest:
            return False
        if not self.socket.has_peers:
            nbytes = 0  # nobody will miss it
        self._gathered = message, memoryview(self._pool.lease(nbytes))
        self._at = 0
        return True

    def piece(self, data: Buffer) -> None:
        if self._gathered is not None and len(self._gathered[1]):
            self._gathered[1][self._at : self._at + len(data)] = data
            self._at += len(data)

    def finish(self) -> None:
        if self._gathered is None:
            return
        (message, data), self._gathered = self._gathered, None
        if len(data):
            self.offer(Message(message.topic, (data,), message.front, message.head, message.headers))

    def close(self, reason: str) -> None:
        """What was begun will not come whole: nobody has heard of it yet."""
        self._gathered = None
