"""A multiset of prefixes that tells quickly whether a topic begins with one of them."""

from __future__ import annotations

from collections.abc import Iterator


class Subscriptions:
    """Prefixes, each with how often it was added (ZeroMQ counts them, so we do).

    Matching costs one set look-up for each distinct length of prefix, whatever their number.
    """

    __slots__ = ("_counts", "_lengths")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, prefix: bytes) -> bool:
        """True if the prefix is new."""
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        if count == 0:
            self._measure()
        return count == 0

    def remove(self, prefix: bytes) -> bool:
        """Takes away one addition. False if it was not there."""
        count = self._counts.get(prefix, 0)
        if count == 0:
            return False
        if count == 1:
            del self._counts[prefix]
            self._measure()
        else:
            self._counts[prefix] = count - 1
        return True

    def matches(self, topic: bytes) -> bool:
        """Whether any prefix begins the topic. The empty prefix begins every topic."""
        counts = self._counts
        size = len(topic)
        for length in self._lengths:
            if length > size:
                return False
            if topic[:length] in counts:
                return True
        return False

    def _measure(self) -> None:
        self._lengths = tuple(sorted({len(prefix) for prefix in self._counts}))

    def __iter__(self) -> Iterator[bytes]:
        """Every prefix, as often as it was added."""
        for prefix, count in self._counts.items():
            for _ in range(count):
                yield prefix

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __contains__(self, prefix: object) -> bool:
        return prefix in self._counts
