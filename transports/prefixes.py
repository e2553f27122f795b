"""Subscriptions of streams in Python."""

from __future__ import annotations

import threading


class Prefixes:
    """A multiset of prefixes. Changes need the owner's lock; `matches` does not."""

    __slots__ = ("counts", "lengths")

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        # In order. A length without prefixes stays until all prefixes have gone: to count them costs more.
        self.lengths: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        return tuple(self.counts)

    def add(self, prefix: bytes) -> None:
        self.counts[prefix] = self.counts.get(prefix, 0) + 1
        if len(prefix) not in self.lengths:
            self.lengths = tuple(sorted((len(prefix), *self.lengths)))

    def remove(self, prefix: bytes) -> bool:
        """False if the prefix was not subscribed."""
        count = self.counts.get(prefix, 0)
        if count > 1:
            self.counts[prefix] = count - 1
        elif count:
            del self.counts[prefix]
            if not self.counts:
                self.lengths = ()
        return count > 0

    def matches(self, topic: bytes) -> bool:
        """One lookup for each length of prefixes, however many prefixes there are."""
        return any(topic[:length] in self.counts for length in self.lengths)


class Subscribable:
    """The part of a stream with its peer's subscriptions. `_lock` is the stream's."""

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
