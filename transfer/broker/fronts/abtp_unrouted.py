"""Holds abtp messages without a route whose consumer disconnected a moment ago and may be restarting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.transports.errors import Closed

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.protocols.abtp_envelope import Envelope
    from transfer.broker.storage.durability import OnComplete

#: bytes of payloads that may wait here: more would use up what producers may have waiting for the disk
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Awaiting:
    """A message that waits, with its producer, and its callback. until: on the loop's clock."""

    peer: bytes
    envelope: Envelope
    message: Message
    on_complete: OnComplete
    until: float

    @property
    def topic(self) -> tuple[str, str]:
        """Its tenant and topic."""
        return self.envelope.tenant, self.envelope.topic


class AwaitingRoute:
    """Holds messages, on the broker's loop. grace: seconds that a message waits at most. most, max_of_topic:
    limits on messages in all, and of one topic. give: publishes a message again, when a consumer has
    registered and when its time is over."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        grace: float,
        most: int,
        max_of_topic: int,
        give: Callable[[Awaiting], None],
    ) -> None:
        self._loop = loop
        self._grace = grace
        self._most = most
        self._max_of_topic = max_of_topic
        self._give = give
        self._waiting: deque[Awaiting] = deque()
        self._nbytes = 0
        self._of_topic: Counter[tuple[str, str]] = Counter()
        self._due: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(
        self, peer: bytes, envelope: Envelope, message: Message, on_complete: OnComplete, until: float | None
    ) -> bool:
        """Holds a message; False: its time is over, or too many wait. until: of one that waited before."""
        now = self._loop.time()
        until = now + self._grace if until is None else until
        one = Awaiting(peer, envelope, message, on_complete, until)
        if until <= now or len(self._waiting) >= self._most:
            return False
        if self._of_topic[one.topic] >= self._max_of_topic or self._nbytes + message.nbytes > _MOST_BYTES:
            return False
        self._add(one)
        if self._due is None:
            self._due = self._loop.call_at(until, self._expire)
        return True

    def retry(self) -> None:
        """Publishes the messages again, in order: a consumer has registered. Of a topic that still has no
        route it tries only the first: many consumers may register while many messages wait."""
        waiting, self._waiting, self._nbytes = self._waiting, deque(), 0
        self._of_topic.clear()
        for one in waiting:
            if one.topic in self._of_topic:
                self._add(one)
            else:
                self._give(one)

    def close(self) -> None:
        """Refuses all messages: they are not kept, and their producers get the reason. Idempotent."""
        if self._due is not None:
            self._due.cancel()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.on_complete(Closed("the broker ends"))

    def _add(self, one: Awaiting) -> None:
        self._waiting.append(one)
        self._nbytes += one.message.nbytes
        self._of_topic[one.topic] += 1

    def _expire(self) -> None:
        self._due = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].until <= now:
            one = self._waiting.popleft()
            self._nbytes -= one.message.nbytes
            self._of_topic[one.topic] -= 1
            if not self._of_topic[one.topic]:
                del self._of_topic[one.topic]
            self._give(one)
        if self._waiting and self._due is None:
            self._due = self._loop.call_at(self._waiting[0].until, self._expire)
