"""Whose turn it is on a REQ or a REP.

The pattern rules over it (`patterns/req_rep.py`). The core reads and writes the same object for the
common case, one plain frame each way, so that no Python runs between the two. Each core brings its
own class with these attributes and methods, of which each is one step for other threads; this one is
the plain state, for one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Turn:
    """State of one socket's dialogue.

    `number`: the open request, 0 is none. `stream`: who has it (REQ) or who asked (REP).
    `pending`: the request that is being sent. `open`: REP owes a reply. `failure`: why no reply can come.
    `last`: number of the newest request. `mark`: bits that its number has on the wire besides. `relaxed`: a
    new request may replace one that is open.
    `simple`: REP: the request had no envelope.
    `asked`: time.monotonic_ns() of the open request. `counts`, `total_ns`: round trips of a REQ, in the
    buckets of `BOUNDS`.
    """

    __slots__ = (
        "asked",
        "counts",
        "failure",
        "last",
        "mark",
        "number",
        "open",
        "pending",
        "relaxed",
        "simple",
        "stream",
        "total_ns",
    )

    #: upper ends of the buckets in nanoseconds, doubling; one more holds what is longer
    BOUNDS = tuple(16_000 << power for power in range(20))

    def __init__(self) -> None:
        self.number = 0
        self.last = 0
        self.mark = 0
        self.relaxed = False
        self.pending = 0
        self.stream: Any = None
        self.failure: BaseException | None = None
        self.open = False
        self.simple = True
        self.asked = 0
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total_ns = 0

    # -- REQ

    def asks(self, stream: Any, number: int, now: int) -> None:
        """The request `pending` went to this stream, at `now` (ns). Nothing is open if its reply was
        quicker than this call: a thread that waited for an earlier one had it."""
        early = self.pending != number
        self.pending = 0
        self.asked = now
        self.number = 0 if early else number
        self.stream = stream
        self.failure = None

    def answers(self, stream: Any, number: int) -> bool:
        """A reply came: True if it is that of the open request, which is closed then.

        A request without a stream is on its way to another peer: who has its number is that one.
        """
        if number and number == self.pending:
            self.pending = 0
            self.asked = 0
            return True
        if not number or number != self.number or (self.stream is not None and self.stream is not stream):
            return False
        self.number = 0
        self.failure = None  # it came before the end
        return True

    def fails(self, stream: Any, error: BaseException) -> bool:
        """The stream is lost. True if the open request was with it: no reply can come."""
        if not self.number or self.stream is not stream:
            return False
        self.failure = error
        return True

    def gives_up(self) -> BaseException | None:
        """Closes an open request that failed: why it did. None: it has not."""
        failure = self.failure
        if not self.number or failure is None:
            return None
        self.number = 0
        self.failure = None
        return failure

    def answered(self, now: int) -> None:
        """The reply to the request at `asked` is there: counts the round trip. 0: nobody knows."""
        if not self.asked:
            return
        took = now - self.asked
        self.counts[bisect_left(self.BOUNDS, took)] += 1
        self.total_ns += took

    # -- REP

    def was_asked(self, stream: Any, number: int, simple: bool) -> None:
        """A request of this stream was received: a reply is owed."""
        self.stream = stream
        self.number = number
        self.simple = simple
        self.open = True

    def closes(self, stream: Any) -> bool:
        """Nothing is owed to this stream any more. False: nothing was."""
        if not self.open or self.stream is not stream:
            return False
        self.open = False
        return True
