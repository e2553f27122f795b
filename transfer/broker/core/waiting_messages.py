"""Messages of direct delivery that wait for their consumer, their next attempt or their delivery time.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from transfer.broker.core.priority_queue import DEFAULT_CLASS, WEIGHTS, PriorityQueue
from transfer.broker.core.timers import Timers

if TYPE_CHECKING:
    from transfer.broker.core.admission import Admission
    from transfer.broker.core.dispatcher_actions import Now
    from transfer.broker.core.dispatcher_events import QueuedMessage
    from transfer.broker.core.sessions import ConsumerKey


class WaitingMessages:
    """All messages that are not in flight. Not thread-safe. admission: counts what waits. weights: of the
    classes of priority."""

    def __init__(self, admission: Admission, weights: Mapping[str, int] = WEIGHTS) -> None:
        self._admission = admission
        self._weights = weights
        self._messages: dict[int, QueuedMessage] = {}
        self._queues: dict[ConsumerKey, PriorityQueue] = {}
        self._retries: Timers[int] = Timers()  # seconds, monotonic
        self._scheduled: Timers[int] = Timers()  # unix milliseconds
        self._expiries: Timers[int] = Timers()  # unix milliseconds
        self._later: set[int] = set()  # those that admission counts as later

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, number: int) -> bool:
        return number in self._messages

    @property
    def scheduled(self) -> int:
        """The number of messages whose delivery time has not come."""
        return len(self._scheduled)

    def put(self, queued: QueuedMessage, now: Now, delay: float = 0.0) -> bool:
        """Adds a message, for `delay` seconds at least. True: its consumer may get it at once."""
        facts, number = queued.facts, queued.number
        self._messages[number] = queued
        later = facts.due_ms > now.unix_ms
        if later:
            self._later.add(number)
        self._admission.waits(facts.tenant, queued.destination, facts.topic, later=later)
        if facts.expires_ms:
            self._expiries.set(number, facts.expires_ms)
        if delay > 0:
            self._retries.set(number, now.seconds + delay)
            return False
        if later:
            self._scheduled.set(number, facts.due_ms)
            return False
        queue = self._queues.get(queued.key)
        if queue is None:
            queue = self._queues[queued.key] = PriorityQueue(self._weights)
        queue.put(number, self._class(queued))
        return True

    def take(self, key: ConsumerKey) -> QueuedMessage | None:
        """Removes and returns the next message for this consumer."""
        queue = self._queues.get(key)
        number = queue.take() if queue is not None else None
        if queue is not None and not queue:
            del self._queues[key]
        return self._gone(number) if number is not None else None

    def discard(self, queued: QueuedMessage) -> bool:
        """Removes a message, wherever it waits. Returns False if it did not wait."""
        number = queued.number
        if number not in self._messages:
            return False
        self._retries.cancel(number)
        self._scheduled.cancel(number)
        queue = self._queues.get(queued.key)
        if queue is not None:
            queue.discard(number, self._class(queued))
            if not queue:
                del self._queues[queued.key]
        self._gone(number)
        return True

    def due(self, now: Now, most: int) -> list[QueuedMessage]:
        """Removes and returns messages whose next attempt or delivery time has come; the caller puts them
        again."""
        numbers = self._retries.due(now.seconds, most)
        numbers += self._scheduled.due(now.unix_ms, most - len(numbers))
        return [self._gone(number) for number in numbers]

    def expired(self, now: Now, most: int) -> list[QueuedMessage]:
        """Removes and returns expired messages."""
        found = [self._messages[number] for number in self._expiries.due(now.unix_ms, most)]
        for queued in found:
            self.discard(queued)
        return found

    def keys(self, tenant: str) -> list[ConsumerKey]:
        """Returns the consumers of this tenant for which messages are ready."""
        return [key for key in self._queues if key[0] == tenant]

    def ready(self, key: ConsumerKey) -> list[QueuedMessage]:
        """Returns the messages that are ready for this consumer, in the order in which they came."""
        return [self._messages[number] for number in sorted(self._queues.get(key, ()))]

    def seconds_left(self, now: Now) -> float | None:
        """Returns the seconds until the next attempt, delivery time or expiry. None: there is none."""
        times: list[float] = []
        if (retry := self._retries.first()) is not None:
            times.append(retry - now.seconds)
        for timers in (self._scheduled, self._expiries):
            if (first := timers.first()) is not None:
                times.append((first - now.unix_ms) / 1000)
        return max(min(times), 0.0) if times else None

    def _gone(self, number: int) -> QueuedMessage:
        queued = self._messages.pop(number)
        self._expiries.cancel(number)
        later = number in self._later
        self._later.discard(number)
        self._admission.waited(queued.facts.tenant, queued.destination, queued.facts.topic, later=later)
        return queued

    def _class(self, queued: QueuedMessage) -> str:
        """Returns the message's class, or the default if the class has no weight: weights may have changed
        since it came."""
        name = queued.facts.priority
        if name in self._weights:
            return name
        return DEFAULT_CLASS if DEFAULT_CLASS in self._weights else next(iter(self._weights))
