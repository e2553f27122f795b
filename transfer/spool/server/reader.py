"""A reader, as the desk has it: which shard it leases, what it waits for, and what it has not taken yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from transfer.spool.server.run_record import RunRecord

#: bytes of answers that a reader has not taken; beyond that it gets no more, whatever it has asked for
_MOST_UNSENT = 64 << 20


class Sent(Protocol):
    """An answer on its way. done: its memory is free again."""

    @property
    def done(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class Taker:
    """A connection that asks for rows. waiting: what it asked for. busy: an answer is being made. unsent:
    answers that its connection has not taken yet, with their bytes."""

    waiting: deque[Any] = field(default_factory=deque)
    busy: bool = False
    unsent: deque[tuple[Sent, int]] = field(default_factory=deque)

    def lags(self) -> bool:
        """Whether it has not taken what it was answered: it is answered no more until it has."""
        while self.unsent and self.unsent[0][0].done:
            self.unsent.popleft()
        return sum(nbytes for _, nbytes in self.unsent) >= _MOST_UNSENT

    @property
    def ready(self) -> bool:
        """Whether its next request may be answered."""
        return bool(self.waiting) and not self.busy and not self.lags()


@dataclass(slots=True)
class Reader(Taker):
    """A connection that reads a shard of a group's rows, which is its lease; it waits with its fetches.

    entry: the run that it opened, though it was deleted since.
    """

    entry: RunRecord
    run: str
    group: str
    shard: int
    shards: int
    token: str
