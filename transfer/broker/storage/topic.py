"""A topic of the broker: what it keeps, its position, its subscribers."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.subscriber import BrokerSubscriber

#: prefix of the broker's topics in the log, which the spool shares
LOG_PREFIX = "topic/"
#: prefix in the log for messages of unkept topics that wait for a consumer of direct delivery (disk format)
DIRECT_PREFIX = "beside/"
#: ranges of withheld messages that one topic remembers
_MAX_WITHHELD = 1000


class Recent:
    """The newest messages of topics that groups read, in memory, so that they need not be read from the log.
    Shared by all topics. most, max_bytes: limits on what it holds."""

    __slots__ = ("_max_bytes", "_messages", "_most", "_nbytes", "_order")

    def __init__(self, most: int = 16_384, max_bytes: int = 64 << 20) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._messages: dict[tuple[str, int | None], Message] = {}
        self._order: deque[Message] = deque()
        self._nbytes = 0

    def add(self, messages: Sequence[Message], nbytes: int) -> None:
        """Adds messages that have their offsets. nbytes: of all their payloads."""
        order = self._order
        order.extend(messages)
        self._messages.update({(one.topic, one.offset): one for one in messages})
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes or len(order) > self._most:
            oldest = order.popleft()
            self._nbytes -= oldest.nbytes
            self._messages.pop((oldest.topic, oldest.offset), None)

    def get(self, topic: str, offset: int) -> Message | None:
        """Returns the message; None: it must be read from the log."""
        return self._messages.get((topic, offset))


class Withheld:
    """Offsets of a topic's messages that are not for subscribers, as ranges; also of those that retention has
    removed, so that nobody counts them as missed. The oldest ranges are forgotten. packed: from `pack`."""

    __slots__ = ("_ranges",)

    def __init__(self, packed: bytes = b"") -> None:
        self._ranges = [*struct.iter_unpack("<QQ", packed[: len(packed) // 16 * 16])]

    def add(self, offset: int) -> None:
        """Adds an offset, which is larger than all others."""
        if self._ranges and self._ranges[-1][1] == offset:
            self._ranges[-1] = (self._ranges[-1][0], offset + 1)
        else:
            self._ranges = [*self._ranges, (offset, offset + 1)][-_MAX_WITHHELD:]

    def pack(self) -> bytes:
        """Returns the ranges as bytes (disk format): begin and end of each, u64."""
        return b"".join(struct.pack("<QQ", *one) for one in self._ranges)

    def within(self, begin: int, end: int) -> Iterator[range]:
        """Yields those from `begin` up to `end`, ascending."""
        for low, high in self._ranges:
            if found := range(max(low, begin), min(high, end)):
                yield found


class Topic:
    """A topic, used on the broker's loop only. name: text. durable: the log keeps its messages. position:
    bytes of all its payloads together. kept: the offset before which all messages are on the disk.
    listeners: its subscribers, as of `version` of the subscriptions. messages, nbytes: published since the
    start. recent: where its newest messages are held; None: no group reads them. withheld: its messages that
    are not for subscribers."""

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
        "withheld",
    )

    def __init__(self, name: str, *, durable: bool, position: int = 0) -> None:
        self.name = name
        self.durable = durable
        self.log_name = LOG_PREFIX + name
        self.position = position
        self.kept = 0
        self.withheld = Withheld()
        self.recent: Recent | None = None
        self.listeners: list[BrokerSubscriber] = []
        self.version = -1
        self.messages = 0
        self.nbytes = 0
