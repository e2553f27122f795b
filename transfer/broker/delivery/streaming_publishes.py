"""The payloads and streams that are on their way through the broker, and who receives each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.delivery.subscriber import Subscriber


class StreamingPublishes:
    """All that are open. There may be hundreds of thousands: only what an operator asks walks all of them.

    slow: those whose publisher waits for a receiver. announced: those whose missing bytes count, the oldest
    first. gathered: bytes of those that go to some receivers whole at their end.
    """

    def __init__(self) -> None:
        self._open: dict[StreamingPublish, None] = {}
        self._received: dict[Subscriber, set[StreamingPublish]] = {}
        self.slow: set[StreamingPublish] = set()
        self.announced: dict[StreamingPublish, None] = {}
        self.gathered = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[StreamingPublish]:
        return iter(self._open)

    def add(self, passage: StreamingPublish) -> None:
        """One begins."""
        self._open[passage] = None
        for receiver in passage.receivers:
            self.receives(receiver, passage)

    def receives(self, receiver: Subscriber, passage: StreamingPublish) -> None:
        """A receiver is given it from now on."""
        self._received.setdefault(receiver, set()).add(passage)

    def let_go(self, receiver: Subscriber, passage: StreamingPublish) -> None:
        """A receiver is given no more of it."""
        its = self._received.get(receiver, set())
        its.discard(passage)
        if not its:
            self._received.pop(receiver, None)

    def ended(self, passage: StreamingPublish) -> None:
        """One is over, whole or not. Idempotent."""
        self._open.pop(passage, None)
        self.announced.pop(passage, None)
        self.slow.discard(passage)
        for receiver in passage.receivers:
            self.let_go(receiver, passage)

    def received(self) -> set[StreamingPublish]:
        """Those with a receiver."""
        return set().union(*self._received.values())

    def of(self, receiver: Subscriber) -> list[StreamingPublish]:
        """Those that it receives."""
        return list(self._received.get(receiver, ()))

    def slow_of(self, receiver: Subscriber) -> list[StreamingPublish]:
        """Those of them that some receiver holds up."""
        return list(self.slow & self._received.get(receiver, set()))

    def held_up(self) -> list[StreamingPublish]:
        """Those with a receiver that has more waiting than its limit, or had at the last look."""
        found = set(self.slow)
        for receiver, its in self._received.items():
            if receiver.queued > receiver.limit:
                found |= its
        return list(found)
