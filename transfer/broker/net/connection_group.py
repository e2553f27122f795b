"""What the connections of one loop share: the memory they read into, and who has something to write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from transfer.broker.delivery import turns as in_turns
from transfer.broker.delivery.turns import call_after_turns
from transfer.broker.net.splice import pipes_of
from transfer.transports.core import Lease

if TYPE_CHECKING:
    from transfer.broker.net.connection import Connection
    from transfer.broker.net.output import Output
    from transfer.transports.core.contract import Pool

T = TypeVar("T")

#: bytes of the arena that connections read into, one behind the other
_ARENA = 1 << 20
#: an arena with less room than this is left to those who hold views of it
_LEAST_ROOM = 64 << 10
#: smaller views of it that have to wait for a peer are copied: else a peer that does not read, and is allowed
#: 64 MiB, would hold a thousand times as much
_LEAST_VIEW = _ARENA // 4


def copy_small_view(data: T) -> T | bytes:
    """Copies a small view of the arena that must wait in a queue: it would keep the whole arena alive."""
    if isinstance(data, memoryview) and len(data) < _LEAST_VIEW and isinstance(data.obj, Lease):
        return bytes(data)
    return data


class ConnectionGroup:
    """What the connections of one loop share: the memory they read into, and who has something to write.

    pipes: for payloads that are not copied (`splice.py`); None: there are none here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pipes = pipes_of(pool)
        self._pool = pool
        self._arena = memoryview(pool.lease(_ARENA))
        self._used = 0
        self._dirty: deque[Output] = deque()
        self._reading_ends = 0.0  # the loop's time; 0: no line has read in this turn
        self._writes = False  # lines write, or will
        self._waiting: dict[Connection, Callable[[], None]] = {}  # to go on in the next turn, in this order
        #: lines whose peers do not take what is queued
        self.blocked: set[Output] = set()

    @property
    def busy(self) -> bool:
        """Something waits to be written, or to be read though it is there."""
        return bool(self._dirty or self.blocked or self._waiting)

    def close(self) -> None:
        """When all connections have ended. Idempotent."""
        if self.pipes is not None:
            self.pipes.close()

    def room(self) -> memoryview:
        """Memory to read into; `take` says how much of it was used."""
        if _ARENA - self._used < _LEAST_ROOM:
            self._arena = memoryview(self._pool.lease(_ARENA))
            self._used = 0
        return self._arena[self._used :]

    def take(self, nbytes: int) -> memoryview:
        """What was read; it stays as it is while somebody has a view of it."""
        begin = self._used
        self._used = begin + nbytes
        return self._arena[begin : self._used]

    def may_read(self, line: Connection) -> bool:
        """Whether this turn has time left, of some milliseconds for all lines. If not the line reads in the
        next one, before those to which something comes then."""
        if self._has_time():
            return True
        self._waiting.setdefault(line, line.read)
        return False

    def later(self, line: Connection, call: Callable[[], None]) -> None:
        """Has it called when the line's next turn comes."""
        self._waiting[line] = call
        self._has_time()

    def _has_time(self) -> bool:
        now = self.loop.time()
        if not self._reading_ends:
            self._reading_ends = now + in_turns.TURN_SECONDS
            self.loop.call_soon(self._end_turn)
        return now < self._reading_ends

    def _end_turn(self) -> None:
        if self.loop.time() < self._reading_ends:
            self._read_on()
        else:
            call_after_turns(self.loop, self._read_on)

    def _read_on(self) -> None:
        self._reading_ends = 0.0
        waiting, self._waiting = self._waiting, {}
        while waiting and self._has_time():
            line = next(iter(waiting))
            try:
                waiting.pop(line)()
            except Exception:  # noqa: BLE001 - the others read all the same
                line.fail()
        self._waiting = waiting | self._waiting  # they come first

    def soon(self, line: Output) -> None:
        """The line writes at the end of this turn, or a few turns later if there are many."""
        self._dirty.append(line)
        if not self._writes:
            self._writes = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        ends = monotonic() + in_turns.TURN_SECONDS
        while self._dirty:
            line = self._dirty.popleft()
            try:
                line.flush()
            except Exception:  # noqa: BLE001 - the others write all the same
                line.fail()
            if self._dirty and monotonic() >= ends:
                call_after_turns(self.loop, self._flush)
                return
        self._writes = False
