"""The server's state of a reader: the shard that it leases, its requests, its unread answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from transfer.spool.server.run_record import RunRecord

#: bytes of answers that a reader may leave unread; beyond that it gets no more
_MOST_UNSENT = 64 << 20


class PendingAnswer(Protocol):
    """An answer in transit. done: its memory is free again."""

    @property
    def done(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class RowTaker:
    """A connection that requests rows. waiting: its requests. busy: an answer is being made. unsent: answers
    that its connection has not taken yet, with their bytes."""

    waiting: deque[Any] = field(default_factory=deque)
    busy: bool = False
    unsent: deque[tuple[PendingAnswer, int]] = field(default_factory=deque)

    def lags(self) -> bool:
        """Whether it has too many unread answers: it gets no more until it reads them."""
        while self.unsent and self.unsent[0][0].done:
            self.unsent.popleft()
        return sum(nbytes for _, nbytes in self.unsent) >= _MOST_UNSENT

    @property
    def ready(self) -> bool:
        """Whether its next request may be answered."""
        return bool(self.waiting) and not self.busy and not self.lags()


@dataclass(slots=True)
class SpoolReader(RowTaker):
    """A connection that reads a shard of a group's rows, which is its lease; `waiting` has its fetches.

    entry: the run that it opened, even if it is deleted since.
    """

    entry: RunRecord
    run: str
    group: str
    shard: int
    shards: int
    token: str
