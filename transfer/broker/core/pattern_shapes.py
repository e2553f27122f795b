"""Finds patterns of one kind with wildcards by topic. Pure.

Patterns of one shape (`topic_patterns.Shape`) differ only in their other segments. A topic in which the
shape's places are replaced by wildcards reads as the only pattern of this shape that matches it. So a lookup
costs one dict access for each shape of the topic's length, however many patterns exist. A tree would walk
into each branch that begins like the topic: with `*` in 20 segments, a million branches.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from transfer.broker.core.topic_patterns import MARKS, ONE, REST, Kind, Shape, TopicPattern

P = TypeVar("P")


class PatternShapes(Generic[P]):
    """The value of each pattern, not None. Not thread-safe."""

    __slots__ = ("_kept", "_mark", "_ones", "_rests")

    def __init__(self, kind: Kind) -> None:
        self._mark = MARKS[kind]
        self._kept: dict[str, P] = {}
        # The number of patterns of each shape: those with `*` by their size, and those with `>`.
        self._ones: dict[int, dict[Shape, int]] = {}
        self._rests: dict[Shape, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def count(self) -> int:
        """The number of shapes: a lookup takes at most so many steps."""
        return sum(map(len, self._ones.values())) + len(self._rests)

    def has(self, shape: Shape) -> bool:
        """Returns whether some pattern has this shape."""
        return shape in (self._rests if shape.rest else self._ones.get(shape.size, ()))

    def get(self, pattern: TopicPattern) -> P | None:
        """Returns the value of the pattern, or None."""
        return self._kept.get(pattern.text)

    def put(self, pattern: TopicPattern, shape: Shape, kept: P) -> None:
        """Sets the value of the pattern, which has this shape."""
        if pattern.text not in self._kept:
            self._counted(shape, 1)
        self._kept[pattern.text] = kept

    def remove(self, pattern: TopicPattern, shape: Shape) -> None:
        """Removes the pattern."""
        if self._kept.pop(pattern.text, None) is not None:
            self._counted(shape, -1)

    def collect(self, topic: str, ones: list[P], rests: list[P]) -> int:
        """Adds the values of matching patterns: to `rests` for those with `>`, to `ones` for others. Returns
        its number of steps: the shapes that it looked at."""
        mark, kept = self._mark, self._kept
        given = topic.split(mark)
        if "" in given:
            return 0
        shapes = self._ones.get(len(given), ())
        for shape in shapes:
            wanted = given.copy()
            for place in shape.ones:
                wanted[place] = ONE
            found = kept.get(mark.join(wanted))
            if found is not None:
                ones.append(found)
        for shape in self._rests:
            if shape.size < len(given):
                found = kept.get(mark.join((*given[: shape.size], REST)))
                if found is not None:
                    rests.append(found)
        return len(shapes) + len(self._rests)

    def _counted(self, shape: Shape, change: int) -> None:
        counts = self._rests if shape.rest else self._ones.setdefault(shape.size, {})
        counts[shape] = counts.get(shape, 0) + change
        if not counts[shape]:
            del counts[shape]
