"""Whose turn it is on a REQ or a REP.

The pattern rules over it (`patterns/req_rep.py`). The core reads and writes the same object for the
common case, one plain frame each way, so that no Python runs between the two. The compiled core
brings its own class with these attributes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Turn:
    """State of one socket's dialogue; guarded by the interpreter's lock.

    `number`: the open request, 0 is none. `stream`: who has it (REQ) or who asked (REP).
    `open`: REP owes a reply. `failure`: why no reply can come. `last`: number of the newest request.
    `simple`: the common case applies (no correlation, no relaxed order, no envelope).
    `asked`: time.monotonic_ns() of the open request. `counts`, `total_ns`: round trips of a REQ, in the
    buckets of `BOUNDS`.
    """

    __slots__ = ("asked", "counts", "failure", "last", "number", "open", "simple", "stream", "total_ns")

    #: upper ends of the buckets in nanoseconds, doubling; one more holds what is longer
    BOUNDS = tuple(16_000 << power for power in range(20))

    def __init__(self) -> None:
        self.number = 0
        self.last = 0
        self.stream: Any = None
        self.failure: BaseException | None = None
        self.open = False
        self.simple = True
        self.asked = 0
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total_ns = 0

    def answered(self, now: int) -> None:
        """The reply to the request at `asked` is there: counts the round trip."""
        took = now - self.asked
        self.counts[bisect_left(self.BOUNDS, took)] += 1
        self.total_ns += took
