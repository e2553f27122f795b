"""A multiset of prefixes that tells quickly whether a topic begins with one of them."""

from __future__ import annotations

from collections.abc import Iterator


class Subscriptions:
    """Prefixes, each with how often it was added (ZeroMQ counts them, so we do).

    Matching costs one set look-up for each distinct length of prefix, whatever their number.
    """

    __slots__ = ("_counts", "_lengths", "_total")

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._lengths: tuple[int, ...] = ()
        self._total = 0

    def add(self, prefix: bytes) -> bool:
        """True if the prefix is new."""
        count = self._counts.get(prefix, 0)
        self._counts[prefix] = count + 1
        self._total += 1
        if count == 0 and len(prefix) not in self._lengths:
            self._lengths = tuple(sorted((*self._lengths, len(prefix))))
        return count == 0

    def remove(self, prefix: bytes) -> bool:
        """Takes away one addition. False if it was not there."""
        count = self._counts.get(prefix, 0)
        if count == 0:
            return False
        self._total -= 1
        if count == 1:
            del self._counts[prefix]
            self._lengths = tuple(sorted({len(left) for left in self._counts}))
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

    def __iter__(self) -> Iterator[bytes]:
        """Every prefix, as often as it was added."""
        for prefix, count in self._counts.items():
            for _ in range(count):
                yield prefix

    def __len__(self) -> int:
        return self._total

    def __contains__(self, prefix: object) -> bool:
        return prefix in self._counts
