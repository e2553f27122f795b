"""Subscriptions of streams that are not compiled."""

from __future__ import annotations

import threading


class Prefixes:
    """A multiset of prefixes. Changes need the owner's lock; `matches` does not."""

    __slots__ = ("_counts", "all")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self.all: tuple[bytes, ...] = ()  # for startswith, which takes a tuple

    def add(self, prefix: bytes) -> None:
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        self.all = tuple(self._counts)

    def remove(self, prefix: bytes) -> bool:
        """False if it was not subscribed."""
        count = self._counts.get(prefix, 0)
        if count > 1:
            self._counts[prefix] = count - 1
        elif count:
            del self._counts[prefix]
            self.all = tuple(self._counts)
        return count > 0

    def matches(self, topic: bytes) -> bool:
        return topic.startswith(self.all)


class Subscribable:
    """The part of a stream that knows what its peer subscribed. `_lock` is the stream's."""

    _lock: threading.Lock
    _prefixes: Prefixes

    @property
    def subscriptions(self) -> tuple[bytes, ...]:
        return self._prefixes.all

    def subscribe(self, prefix: bytes) -> None:
        with self._lock:
            self._prefixes.add(prefix)

    def unsubscribe(self, prefix: bytes) -> bool:
        with self._lock:
            return self._prefixes.remove(prefix)

    def matches(self, topic: bytes) -> bool:
        return self._prefixes.matches(topic)
