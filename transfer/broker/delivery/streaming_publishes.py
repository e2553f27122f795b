"""The payloads and streams that the broker forwards now, and the receivers of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.delivery.subscriber import BrokerSubscriber


class StreamingPublishes:
    """All open payloads and streams. There may be hundreds of thousands: only operators' requests iterate
    over all. slow: those whose publisher waits for a receiver. announced: those whose missing bytes count,
    the oldest first. gathered: bytes of payloads that some receivers get whole at the end."""

    def __init__(self) -> None:
        self._open: dict[StreamingPublish, None] = {}
        self._received: dict[BrokerSubscriber, set[StreamingPublish]] = {}
        self.slow: set[StreamingPublish] = set()
        self.announced: dict[StreamingPublish, None] = {}
        self.gathered = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[StreamingPublish]:
        return iter(self._open)

    def add(self, upload: StreamingPublish) -> None:
        """Adds one that begins."""
        self._open[upload] = None
        for receiver in upload.receivers:
            self.receives(receiver, upload)

    def receives(self, receiver: BrokerSubscriber, upload: StreamingPublish) -> None:
        """Adds a receiver."""
        self._received.setdefault(receiver, set()).add(upload)

    def let_go(self, receiver: BrokerSubscriber, upload: StreamingPublish) -> None:
        """Removes a receiver."""
        its = self._received.get(receiver, set())
        its.discard(upload)
        if not its:
            self._received.pop(receiver, None)

    def ended(self, upload: StreamingPublish) -> None:
        """Removes one that has ended, whole or not. Idempotent."""
        self._open.pop(upload, None)
        self.announced.pop(upload, None)
        self.slow.discard(upload)
        for receiver in upload.receivers:
            self.let_go(receiver, upload)

    def received(self) -> set[StreamingPublish]:
        """Returns those that have a receiver."""
        return set().union(*self._received.values())

    def of(self, receiver: BrokerSubscriber) -> list[StreamingPublish]:
        """Returns those that a subscriber receives."""
        return list(self._received.get(receiver, ()))

    def slow_of(self, receiver: BrokerSubscriber) -> list[StreamingPublish]:
        """Returns those that a subscriber receives and some receiver blocks."""
        return list(self.slow & self._received.get(receiver, set()))

    def held_up(self) -> list[StreamingPublish]:
        """Returns those with a receiver that has more waiting than its limit, now or at the last look."""
        found = set(self.slow)
        for receiver, its in self._received.items():
            if receiver.queued > receiver.limit:
                found |= its
        return list(found)
