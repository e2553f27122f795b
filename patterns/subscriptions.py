"""Subscribed prefixes and their counts. The core matches messages against them."""

from __future__ import annotations

from collections.abc import Iterator


class Subscriptions:
    """Prefixes, each with its count (ZeroMQ counts subscriptions). nbytes: the length of all of them, each
    once."""

    __slots__ = ("_counts", "_total", "nbytes")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._total = self.nbytes = 0

    def add(self, prefix: bytes) -> None:
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        self._total += 1
        if not count:
            self.nbytes += len(prefix)

    def remove(self, prefix: bytes) -> bool:
        """Removes one subscription. False: there was none."""
        count = self._counts.get(prefix, 0)
        if count == 0:
            return False
        self._total -= 1
        if count == 1:
            del self._counts[prefix]
            self.nbytes -= len(prefix)
        else:
            self._counts[prefix] = count - 1
        return True

    def matches(self, topic: bytes) -> bool:
        """Whether the topic begins with one of the prefixes: one look-up for each of its beginnings."""
        return any(topic[:length] in self._counts for length in range(len(topic) + 1))

    def __iter__(self) -> Iterator[bytes]:
        """Yields every prefix as often as it was added. Another thread may add and remove some."""
        for prefix, count in list(self._counts.items()):
            for _ in range(count):
                yield prefix

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self._counts

    def __len__(self) -> int:
        return self._total
