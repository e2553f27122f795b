"""Finds the patterns of all kinds that match a topic. Pure.

A dict finds patterns without wildcards, `pattern_shapes.py` those with wildcards. For prefixes there is a
dict lookup for each of their lengths (256 at most; mostly a few).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from transfer.broker.core.pattern_shapes import PatternShapes
from transfer.broker.core.topic_patterns import Kind, Shape, TopicPattern

P = TypeVar("P")
V = TypeVar("V", bound=Hashable)

#: up to so many values of one pattern stand in a tuple, which is small; more stand in a dict, which is fast
_FEW = 8


class PatternMap(Generic[P]):
    """A map from patterns to values other than None; it finds all values whose patterns match a topic.

    Not thread-safe. Takes about 0.1 KB for each pattern, in addition to its text.
    """

    __slots__ = ("_lengths", "_prefixes", "_texts", "_wild")

    def __init__(self) -> None:
        # These have no empty entries, so that a lookup visits none.
        self._texts: dict[Kind, dict[str, P]] = {}
        self._wild: dict[Kind, PatternShapes[P]] = {}
        self._prefixes: dict[str, P] = {}
        self._lengths: dict[int, int] = {}  # of prefixes, in order -> number of prefixes

    def __len__(self) -> int:
        wild = sum(len(patterns) for patterns in self._wild.values())
        return sum(map(len, self._texts.values())) + wild + len(self._prefixes)

    @property
    def shapes(self) -> int:
        """The number of shapes of patterns with wildcards: they bound the cost of a lookup."""
        return sum(patterns.count for patterns in self._wild.values())

    def has(self, shape: Shape) -> bool:
        """Returns whether some pattern has this shape."""
        return shape.kind in self._wild and self._wild[shape.kind].has(shape)

    def get(self, pattern: TopicPattern) -> P | None:
        """Returns the value of the pattern, or None."""
        kind = pattern.kind
        if kind is Kind.PREFIX:
            return self._prefixes.get(pattern.text)
        if pattern.segments is None:
            return self._texts.get(kind, {}).get(pattern.text)
        return self._wild[kind].get(pattern) if kind in self._wild else None

    def put(self, pattern: TopicPattern, kept: P) -> None:
        """Sets the value of the pattern."""
        kind, shape = pattern.kind, pattern.shape
        if kind is Kind.PREFIX:
            if pattern.text not in self._prefixes:
                self._count_length(len(pattern.text), 1)
            self._prefixes[pattern.text] = kept
        elif shape is None:
            self._texts.setdefault(kind, {})[pattern.text] = kept
        else:
            if kind not in self._wild:
                self._wild[kind] = PatternShapes(kind)
            self._wild[kind].put(pattern, shape, kept)

    def remove(self, pattern: TopicPattern) -> None:
        """Removes the pattern."""
        kind, shape = pattern.kind, pattern.shape
        if kind is Kind.PREFIX:
            if self._prefixes.pop(pattern.text, None) is not None:
                self._count_length(len(pattern.text), -1)
        elif shape is None:
            texts = self._texts.get(kind, {})
            texts.pop(pattern.text, None)
            if not texts:
                self._texts.pop(kind, None)
        elif kind in self._wild:
            self._wild[kind].remove(pattern, shape)
            if not self._wild[kind]:
                del self._wild[kind]

    def exact(self, topic: str) -> list[P]:
        """Returns the values of patterns without wildcards that match the topic: at most one for each
        kind."""
        found = []
        for texts in self._texts.values():
            kept = texts.get(topic)
            if kept is not None:
                found.append(kept)
        return found

    def wild(self, topic: str, ones: list[P], rests: list[P]) -> int:
        """Adds the values of other patterns that match: to `rests` for prefixes and `>`, to `ones` for `*`.
        Returns its number of steps: the shapes and prefixes that it looked at."""
        steps = 0
        for patterns in self._wild.values():
            steps += patterns.collect(topic, ones, rests)
        if self._prefixes:
            size = len(topic)
            for length in self._lengths:
                if length > size:
                    break
                steps += 1
                kept = self._prefixes.get(topic[:length])
                if kept is not None:
                    rests.append(kept)
        return steps

    def match(self, topic: str) -> tuple[list[P], int]:
        """Returns all values that match the topic, closer patterns first (by `topic_patterns.Rank`), and the
        steps."""
        ones: list[P] = []
        rests: list[P] = []
        steps = self.wild(topic, ones, rests)
        return self.exact(topic) + ones + rests, len(self._texts) + steps

    def _count_length(self, length: int, change: int) -> None:
        count = self._lengths.get(length, 0) + change
        if count and length in self._lengths:
            self._lengths[length] = count
            return
        lengths = {**self._lengths, length: count}
        self._lengths = {length: lengths[length] for length in sorted(lengths) if lengths[length]}


class PatternIndex(Generic[V]):
    """The values that belong to each pattern. Not thread-safe.

    A value may belong to any number of patterns. `version` rises with each change: results are valid until
    then.
    """

    __slots__ = ("_map", "_size", "version")

    def __init__(self) -> None:
        self._map: PatternMap[Collection[V]] = PatternMap()
        self._size = 0
        self.version = 0

    def __len__(self) -> int:
        """Returns the number of pairs of pattern and value."""
        return self._size

    @property
    def shapes(self) -> int:
        """See PatternMap."""
        return self._map.shapes

    def has(self, shape: Shape) -> bool:
        """See PatternMap."""
        return self._map.has(shape)

    def add(self, pattern: TopicPattern, value: V) -> bool:
        """Adds the value to the pattern. Returns False if it is there already."""
        values = self._map.get(pattern) or ()
        if value in values:
            return False
        if isinstance(values, dict):
            values[value] = None
        else:
            more = (*values, value)
            self._map.put(pattern, more if len(more) <= _FEW else dict.fromkeys(more))
        self._changed(1)
        return True

    def discard(self, pattern: TopicPattern, value: V) -> bool:
        """Removes the value from the pattern. Returns False if it is not there."""
        values = self._map.get(pattern) or ()
        if value not in values:
            return False
        if len(values) == 1:
            self._map.remove(pattern)
        elif isinstance(values, dict):
            del values[value]
        else:
            self._map.put(pattern, tuple(other for other in values if other != value))
        self._changed(-1)
        return True

    def holds(self, topic: str, value: V) -> bool:
        """Returns whether the value belongs to a pattern that matches the topic."""
        return any(value in values for values in self._map.match(topic)[0])

    def match(self, topic: str) -> list[V]:
        """Returns the values of all patterns that match the topic: closer patterns first, then in order of
        addition. A value that belongs to several of them is returned several times."""
        return self.match_counted(topic)[0]

    def match_counted(self, topic: str) -> tuple[list[V], int]:
        """Does the same as `match`, and returns the steps too: the shapes bound them, not the number of
        patterns."""
        found, steps = self._map.match(topic)
        values: list[V] = []
        for some in found:
            values.extend(some)
        return values, steps

    def _changed(self, by: int) -> None:
        self._size += by
        self.version += 1
