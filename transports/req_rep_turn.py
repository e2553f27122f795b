"""The state of the dialogue of a REQ or a REP.

The pattern controls it (`patterns/req_rep.py`). The core reads and writes the same object for the
common case, one plain frame each way, so that no Python runs between request and reply. Each core brings its
class with these attributes and methods, each of which is atomic for other threads; this one is the plain
state, for one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Turn:
    """State of one socket's dialogue.

    `number`: the open request, 0 is none. `stream`: the peer that has it (REQ) or sent it (REP).
    `pending`: the request that is being sent. `open`: REP owes a reply. `failure`: why no reply can come.
    `last`: number of the newest request. `mark`: additional bits of its number on the wire. `relaxed`: a
    new request may replace an open one.
    `simple`: REP: the request had no envelope.
    `requested_ns`: time.monotonic_ns() of the open request. `counts`, `total_ns`: round trips of a REQ, in
    the buckets of `BOUNDS`.
    """

    __slots__ = (
        "counts",
        "failure",
        "last",
        "mark",
        "number",
        "open",
        "pending",
        "relaxed",
        "requested_ns",
        "simple",
        "stream",
        "total_ns",
    )

    #: upper bounds of the buckets in nanoseconds, doubling; one more bucket holds longer ones
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
        self.requested_ns = 0
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.total_ns = 0

    # -- REQ

    def asks(self, stream: Any, number: int, now: int) -> None:
        """The request `pending` went to this stream, at `now` (ns). Nothing is open if its reply was faster
        than this call: a thread that waited for an earlier reply received it."""
        early = self.pending != number
        self.pending = 0
        self.requested_ns = now
        self.number = 0 if early else number
        self.stream = stream
        self.failure = None

    def answers(self, stream: Any, number: int) -> bool:
        """A reply came: True if it is the reply to the open request, which is closed then.

        A request without a stream is being sent to another peer: a reply with its number is from that peer.
        """
        if number and number == self.pending:
            self.pending = 0
            self.requested_ns = 0
            return True
        if not number or number != self.number or (self.stream is not None and self.stream is not stream):
            return False
        self.number = 0
        self.failure = None  # the reply came before the end of the stream
        return True

    def fails(self, stream: Any, error: BaseException) -> bool:
        """The stream is lost. True if the open request was with it: no reply can come."""
        if not self.number or self.stream is not stream:
            return False
        self.failure = error
        return True

    def gives_up(self) -> BaseException | None:
        """Closes an open request that failed and returns its error. None: it has not failed."""
        failure = self.failure
        if not self.number or failure is None:
            return None
        self.number = 0
        self.failure = None
        return failure

    def answered(self, now: int) -> None:
        """The reply to the open request has arrived: counts the round trip. 0: the time is unknown."""
        if not self.requested_ns:
            return
        took = now - self.requested_ns
        self.counts[bisect_left(self.BOUNDS, took)] += 1
        self.total_ns += took

    # -- REP

    def request_received(self, stream: Any, number: int, simple: bool) -> None:
        """A request of this stream was received: REP owes a reply."""
        self.stream = stream
        self.number = number
        self.simple = simple
        self.open = True

    def closes(self, stream: Any) -> bool:
        """REP owes this stream no reply any more. False: it owed none."""
        if not self.open or self.stream is not stream:
            return False
        self.open = False
        return True
