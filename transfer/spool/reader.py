"""A reader, as the desk has it: which shard it leases, what it waits for, and what it has not taken yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from transfer.spool.entry import Entry
from transfer.spool.protocol import Fetch

#: bytes of answers that a reader has not taken; beyond that it gets no more, whatever it has asked for
_MOST_UNSENT = 64 << 20


class Sent(Protocol):
    """An answer on its way. done: its memory is free again."""

    @property
    def done(self) -> bool: ...


@dataclass(slots=True)
class Reader:
    """Who reads a shard of a group's rows; its connection is its lease.

    entry: the run that it opened, though it was deleted since. unsent: answers that its connection has not
    taken yet, with their bytes.
    """

    entry: Entry
    run: str
    group: str
    shard: int
    shards: int
    token: str
    waiting: deque[Fetch] = field(default_factory=deque)
    unsent: deque[tuple[Sent, int]] = field(default_factory=deque)

    def lags(self) -> bool:
        """Whether it has not taken what it was answered: it is answered no more until it has."""
        while self.unsent and self.unsent[0][0].done:
            self.unsent.popleft()
        return sum(nbytes for _, nbytes in self.unsent) >= _MOST_UNSENT
