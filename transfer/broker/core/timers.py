"""Timers by key: a heap whose stale entries do not pile up. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: stale entries that stay in the heap before it is rebuilt
_SLACK = 64


class Timers(Generic[K]):
    """One time for each key, in any unit of any clock. Not thread-safe."""

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0  # orders keys of the same time by when they were set

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: K) -> bool:
        return key in self._times

    def set(self, key: K, when: float) -> None:
        """Sets the key's time, in place of an earlier one."""
        self._times[key] = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [entry for entry in self._heap if self._times.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> bool:
        """Cancels the key. Returns False if it was not set."""
        return self._times.pop(key, None) is not None

    def due(self, now: float, most: int) -> list[K]:
        """Cancels and returns keys whose time has come, the earliest first, at most `most`."""
        found: list[K] = []
        while len(found) < most and (first := self.first()) is not None and first <= now:
            key = heapq.heappop(self._heap)[2]
            del self._times[key]
            found.append(key)
        return found

    def first(self) -> float | None:
        """Returns the earliest time, or None."""
        heap, times = self._heap, self._times
        while heap and times.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None
