"""The shared state of one loop's connections: memory to read into, and turns to read and write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from transfer.broker import turns as in_turns
from transfer.broker.net.splice import pipes_of
from transfer.broker.turns import call_after_turns
from transfer.transports.core import Lease

if TYPE_CHECKING:
    from transfer.broker.net.connection import Connection
    from transfer.transports.core.contract import Pool

T = TypeVar("T")

#: bytes of the arena that connections read into, one after the other
_ARENA = 1 << 20
#: an arena with less room than this is replaced; it lives as long as the views of it
_LEAST_ROOM = 64 << 10
#: smaller views that wait for a peer are copied: else a peer that does not read, and is allowed 64 MiB, would
#: hold a thousand times as much
_LEAST_VIEW = _ARENA // 4


def copy_small_view(data: T) -> T | bytes:
    """Copies a small view of the arena that must wait in a queue: it would keep the whole arena alive."""
    if isinstance(data, memoryview) and len(data) < _LEAST_VIEW and isinstance(data.obj, Lease):
        return bytes(data)
    return data


class ConnectionGroup:
    """The shared state of one loop's connections: memory to read into, and turns to read and write.

    pipes: for payloads without copies (`splice.py`); None: this system has no splice.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pipes = pipes_of(pool)
        self._pool = pool
        self._arena = memoryview(pool.lease(_ARENA))
        self._used = 0
        self._dirty: deque[Connection] = deque()
        self._reading_ends = 0.0  # the loop's time; 0: no connection has read in this turn
        self._writes = False  # a flush runs, or is scheduled
        self._waiting: dict[
            Connection, Callable[[], None]
        ] = {}  # they continue in the next turn, in this order
        #: connections whose peers do not take the queued bytes
        self.blocked: set[Connection] = set()

    @property
    def busy(self) -> bool:
        """Whether bytes wait to be written, or received bytes wait to be read."""
        return bool(self._dirty or self.blocked or self._waiting)

    def close(self) -> None:
        """Frees the pipes, after all connections have ended. Idempotent."""
        if self.pipes is not None:
            self.pipes.close()

    def room(self) -> memoryview:
        """Returns memory to read into; then call `take`."""
        if _ARENA - self._used < _LEAST_ROOM:
            self._arena = memoryview(self._pool.lease(_ARENA))
            self._used = 0
        return self._arena[self._used :]

    def take(self, nbytes: int) -> memoryview:
        """Returns the `nbytes` bytes that were read. They do not change while a view of them exists."""
        begin = self._used
        self._used = begin + nbytes
        return self._arena[begin : self._used]

    def may_read(self, connection: Connection) -> bool:
        """Whether this turn, some milliseconds for all connections, has time left.

        If not, the connection reads in the next turn, before connections that receive bytes then.
        """
        if self._has_time():
            return True
        self._waiting.setdefault(connection, connection.read)
        return False

    def later(self, connection: Connection, call: Callable[[], None]) -> None:
        """Schedules a call in the connection's next turn."""
        self._waiting[connection] = call
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
            connection = next(iter(waiting))
            try:
                waiting.pop(connection)()
            except Exception:  # noqa: BLE001 - the other connections still read
                connection.fail()
        self._waiting = waiting | self._waiting  # the older ones run first

    def soon(self, connection: Connection) -> None:
        """Schedules a write at the end of this turn, or a few turns later if there are many."""
        self._dirty.append(connection)
        if not self._writes:
            self._writes = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        ends = monotonic() + in_turns.TURN_SECONDS
        while self._dirty:
            connection = self._dirty.popleft()
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - the other connections still write
                connection.fail()
            if self._dirty and monotonic() >= ends:
                call_after_turns(self.loop, self._flush)
                return
        self._writes = False
