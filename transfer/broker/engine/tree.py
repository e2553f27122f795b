"""A radix tree over segments: patterns with wildcards in, those that mean a topic out. Pure.

A node's children stand in a dict by their segment, the one behind `*` beside it. Segments that follow
each other without a fork stand together in one node, as its label: of a million patterns like
`site.line.device.*.state` each takes one node instead of three, and 0.35 KB instead of 0.6. A byte-wise
tree would be slower: Python compares whole segments as fast as bytes.

A lookup looks at one node for each segment of the topic, and at one more chain of them for each `*` that
fits so far. So it costs what the topic's length and the patterns that nearly mean it cost, however many
others there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import intern
from typing import Generic, TypeVar

from transfer.broker.engine.grammar import ONE

P = TypeVar("P")


class _Node(Generic[P]):
    """A place that patterns lead to: by a segment of the parent, then those of the label, `*` among them.

    here: what is kept for the pattern that ends here; rest: for the one that goes on with `>`.
    """

    __slots__ = ("children", "here", "label", "one", "rest")

    def __init__(self, label: tuple[str, ...] = ()) -> None:
        self.label = label
        self.children: dict[str, _Node[P]] | None = None
        self.one: _Node[P] | None = None
        self.here: P | None = None
        self.rest: P | None = None

    def child(self, segment: str) -> _Node[P] | None:
        """Where the segment of a pattern leads."""
        if segment == ONE:
            return self.one
        return None if self.children is None else self.children.get(segment)

    def lead(self, segment: str, child: _Node[P] | None) -> None:
        """Makes a segment of a pattern lead to this child, or to none."""
        if segment == ONE:
            self.one = child
        elif child is not None:
            if self.children is None:
                self.children = {}
            self.children[segment] = child
        elif self.children is not None:
            self.children.pop(segment, None)
            self.children = self.children or None

    def become(self, other: _Node[P], label: tuple[str, ...]) -> None:
        """Takes over all that another node has."""
        self.label, self.children, self.one = label, other.children, other.one
        self.here, self.rest = other.here, other.rest

    def split(self, at: int) -> None:
        """Ends the label before its segment `at`; a child goes on with the others."""
        low: _Node[P] = _Node()
        low.become(self, self.label[at + 1 :])
        segment, self.label = self.label[at], self.label[:at]
        self.children = self.one = self.here = self.rest = None
        self.lead(segment, low)

    def only(self) -> tuple[str, _Node[P]] | None:
        """The one way on from here, if nothing else is kept here."""
        if self.here is not None or self.rest is not None:
            return None
        if self.one is not None:
            return None if self.children else (ONE, self.one)
        return next(iter(self.children.items())) if self.children and len(self.children) == 1 else None

    def is_empty(self) -> bool:
        return self.here is None and self.rest is None and self.one is None and not self.children


class Tree(Generic[P]):
    """What is kept for each pattern, found by topic. A pattern is its segments, `*` for any one, and
    whether `>` goes on behind them; something other than None is kept for each.

    Not thread-safe. The same patterns make the same tree, in whatever order they came and others went.
    """

    __slots__ = ("_root", "_size")

    def __init__(self) -> None:
        self._root: _Node[P] = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, segments: Sequence[str], *, rest: bool = False) -> P | None:
        """What is kept for the pattern; None if nothing is."""
        found = self._walk(segments)
        if not found:
            return None
        node = found[-1][1]
        return node.rest if rest else node.here

    def put(self, segments: Sequence[str], kept: P, *, rest: bool = False) -> None:
        """Keeps this for the pattern, instead of what was kept for it before."""
        node, at = self._root, 0
        while at < len(segments):
            child = node.child(segments[at])
            if child is None:
                # Words at the end are often the same: kept once, they stay in the processor's cache.
                child = _Node(tuple(map(intern, segments[at + 1 :])))
                node.lead(segments[at], child)
                node = child
                break
            node, at = child, at + 1
            common = _common(node.label, segments, at)
            if common < len(node.label):
                node.split(common)
            at += common
        self._size += (node.rest if rest else node.here) is None
        if rest:
            node.rest = kept
        else:
            node.here = kept

    def remove(self, segments: Sequence[str], *, rest: bool = False) -> None:
        """Keeps nothing for the pattern any more, and no nodes that only it needed."""
        way = self._walk(segments)
        if not way:
            return
        node = way[-1][1]
        self._size -= (node.rest if rest else node.here) is not None
        if rest:
            node.rest = None
        else:
            node.here = None
        while len(way) > 1:
            segment, node = way.pop()
            parent = way[-1][1]
            if node.is_empty():
                parent.lead(segment, None)
            elif (only := node.only()) is not None:
                node.become(only[1], (*node.label, only[0], *only[1].label))

    def collect(self, given: Sequence[str], ones: list[P], rests: list[P]) -> int:
        """Adds what is kept for the patterns that mean these segments of a topic, none of them empty: to
        `rests` for those with `>`, to `ones` for others. Returns the steps it took: how many nodes it
        looked at."""
        count = len(given)
        todo = [(self._root, 0)]
        for node, at in todo:  # it grows meanwhile
            for wanted in node.label:
                if at == count or (wanted != given[at] and wanted != ONE):
                    at = count + 1  # it leads elsewhere
                    break
                at += 1
            if at == count:
                if node.here is not None:
                    ones.append(node.here)
            elif at < count:
                if node.rest is not None:
                    rests.append(node.rest)
                if node.children is not None:
                    child = node.children.get(given[at])
                    if child is not None:
                        todo.append((child, at + 1))
                if node.one is not None:
                    todo.append((node.one, at + 1))
        return len(todo)

    def shape(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Depth and label of each node, the first of it what leads there: for tests and measurements."""
        todo: list[tuple[int, str, _Node[P]]] = [(0, "", self._root)]
        while todo:
            depth, segment, node = todo.pop()
            yield depth, (segment, *node.label)
            ways = sorted((node.children or {}).items())
            todo += [(depth + 1, name, child) for name, child in ways]
            if node.one is not None:
                todo.append((depth + 1, ONE, node.one))

    def _walk(self, segments: Sequence[str]) -> list[tuple[str, _Node[P]]]:
        """The nodes that lead to a pattern, from the root on, each with its segment; empty if it has
        none."""
        node, at = self._root, 0
        way = [("", node)]
        while at < len(segments):
            segment = segments[at]
            child = node.child(segment)
            if child is None or _common(child.label, segments, at + 1) < len(child.label):
                return []
            node, at = child, at + 1 + len(child.label)
            way.append((segment, node))
        return way


def _common(label: tuple[str, ...], segments: Sequence[str], at: int) -> int:
    """How many segments of the label stand in a pattern from `at` on."""
    for number, wanted in enumerate(label):
        if at + number == len(segments) or segments[at + number] != wanted:
            return number
    return len(label)
