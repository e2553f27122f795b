"""Subscriptions of a stream without compiled code: how often each prefix was subscribed."""

from __future__ import annotations


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
