"""The subscriptions of one subscriber, and their limits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import UsageError

if TYPE_CHECKING:
    from transfer.broker.core.pattern_index import PatternIndex, PatternMap
    from transfer.broker.core.topic_patterns import Shape, TopicPattern


@dataclass(frozen=True, slots=True)
class Most:
    """Limits of a subscriber. patterns: in all. shapes: of its patterns with wildcards. shapes_together: of
    all subscribers' patterns; each shape costs a step of every lookup (`pattern_shapes.py`)."""

    patterns: int = 1_000_000
    shapes: int = 128
    shapes_together: int = 1024


class TopicSubscriptions:
    """The patterns of one subscriber, each once. Not thread-safe."""

    __slots__ = ("_most", "_patterns", "_shapes")

    def __init__(self, most: Most) -> None:
        self._most = most
        self._patterns: set[TopicPattern] = set()
        self._shapes: Counter[Shape] = Counter()

    def __len__(self) -> int:
        return len(self._patterns)

    def __contains__(self, pattern: TopicPattern) -> bool:
        return pattern in self._patterns

    def __iter__(self) -> Iterator[TopicPattern]:
        return iter(self._patterns)

    def add(self, pattern: TopicPattern, index: PatternIndex[Any] | PatternMap[Any]) -> None:
        """Adds a pattern. index: holds the patterns of all subscribers. Raises UsageError if there are too
        many."""
        most, shape = self._most, pattern.shape
        if len(self._patterns) >= most.patterns:
            raise UsageError(
                f"one more than the {most.patterns} subscriptions that a subscriber may have",
                hint="end some, or subscribe from another connection",
            )
        if shape is not None and shape not in self._shapes:
            if len(self._shapes) >= most.shapes:
                raise _too_many(f"the {most.shapes} that a subscriber may have", pattern)
            if index.shapes >= most.shapes_together and not index.has(shape):
                raise _too_many(f"the {most.shapes_together} that all subscribers may have", pattern)
        self._patterns.add(pattern)
        if shape is not None:
            self._shapes[shape] += 1

    def discard(self, pattern: TopicPattern) -> None:
        """Removes a pattern."""
        self._patterns.remove(pattern)
        shape = pattern.shape
        if shape is not None:
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def pop(self) -> TopicPattern:
        """Removes and returns any pattern, of a subscriber that has gone."""
        return self._patterns.pop()


def _too_many(what: str, pattern: TopicPattern) -> UsageError:
    return UsageError(
        f"the pattern {pattern.text!r:.80} has a new shape, one more than {what}",
        hint="patterns of one shape have equally many segments and their wildcards at the same places",
    )
