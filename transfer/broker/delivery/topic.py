"""A topic of the broker: what it keeps, how far it has come, who listens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.subscriber import Subscriber

#: in front of the broker's topics in the log, which is the spool's too
LOG_PREFIX = "topic/"
#: the same for messages of topics that keep nothing, which wait for one consumer
DIRECT_PREFIX = "beside/"


class Recent:
    """The newest messages of topics that somebody reads, so that they need not be read from the log again.
    Shared by all topics. most, most_bytes: that are held."""

    __slots__ = ("_messages", "_most", "_most_bytes", "_nbytes", "_order")

    def __init__(self, most: int = 16_384, most_bytes: int = 64 << 20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._messages: dict[tuple[str, int | None], Message] = {}
        self._order: deque[Message] = deque()
        self._nbytes = 0

    def add(self, message: Message) -> None:
        """A message that has its offset."""
        self.add_many((message,), message.nbytes)

    def add_many(self, messages: Sequence[Message], nbytes: int) -> None:
        """The same for several, of so many bytes together."""
        order = self._order
        order.extend(messages)
        self._messages.update({(one.topic, one.offset): one for one in messages})
        self._nbytes += nbytes
        while self._nbytes > self._most_bytes or len(order) > self._most:
            oldest = order.popleft()
            self._nbytes -= oldest.nbytes
            self._messages.pop((oldest.topic, oldest.offset), None)

    def get(self, topic: str, offset: int) -> Message | None:
        """None: it is to be read from the log."""
        return self._messages.get((topic, offset))


class Topic:
    """name: text. durable: its messages are kept in the log. position: bytes of all its payloads together.

    kept: the offset before which all of it is on the disk. listeners: who is told of its messages, found
    for `version` of the subscriptions. messages, nbytes: what was published since the start. Used on the
    broker's loop only. recent: where its newest messages are held; None: nobody reads them.
    """

    __slots__ = (
        "durable",
        "kept",
        "listeners",
        "log_name",
        "messages",
        "name",
        "nbytes",
        "position",
        "recent",
        "version",
    )

    def __init__(self, name: str, *, durable: bool, position: int = 0) -> None:
        self.name = name
        self.durable = durable
        self.log_name = LOG_PREFIX + name
        self.position = position
        self.kept = 0
        self.recent: Recent | None = None
        self.listeners: list[Subscriber] = []
        self.version = -1
        self.messages = 0
        self.nbytes = 0
