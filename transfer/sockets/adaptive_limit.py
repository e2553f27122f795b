"""The byte limit of a peer's queue, adapted to the peer's throughput (the option `adaptive_hwm`)."""

from __future__ import annotations

#: bytes that a queue may hold, unless `most` is less
LEAST = 1 << 20


class AdaptiveLimit:
    """The limit of one peer. Not thread-safe. nbytes: the limit.

    It doubles, up to `most`, while less than half of it is used and nothing waits longer than `delay`: a
    sender may burst. Else it moves half the way to what the peer takes in `delay` seconds.
    """

    __slots__ = ("_taken", "nbytes")

    def __init__(self, nbytes: int, taken: int) -> None:
        """taken: bytes that the peer has taken so far."""
        self.nbytes = nbytes
        self._taken = taken

    def update(self, taken: int, queued: int, seconds: float, delay: float, most: int) -> int:
        """Returns the new limit. taken, queued: bytes; seconds: since the last call."""
        came, self._taken = taken - self._taken, taken
        in_time = int(came / seconds * delay)
        if 2 * queued < self.nbytes and queued <= max(in_time, LEAST):
            wanted = 2 * self.nbytes
        else:
            wanted = (self.nbytes + in_time) // 2
        self.nbytes = min(most, max(LEAST, wanted))
        return self.nbytes
