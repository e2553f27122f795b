"""The shared state of one loop's connections: memory to read into, and turns to read and write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from transfer.broker import turns
from transfer.broker.net.splice import pipes_of
from transfer.broker.turns import call_after_turns
from transfer.transports.core import Lease

if TYPE_CHECKING:
    import socket

    from transfer.broker.net.connection import Connection
    from transfer.transports.core.contract import Pool, TlsChannel

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
        self._reading_ends = 0.0  # on the monotonic clock; 0: no connection has read in this turn
        self._ends = False  # the end of this turn is scheduled
        self._reads_later = self._writes_later = False  # it continues after some turns; or a flush runs
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

    def receive(self, source: socket.socket | TlsChannel, most: int) -> tuple[memoryview, int]:
        """Reads at most `most` bytes. Returns them, which do not change while a view of them exists, and the
        bytes for which there was room. Raises OSError."""
        begin = self._used
        if _ARENA - begin < _LEAST_ROOM:
            self._arena = memoryview(self._pool.lease(_ARENA))
            begin = self._used = 0
        room = self._arena[begin : begin + most]
        nbytes = source.recv_into(room)
        self._used = begin + nbytes
        return room[:nbytes], len(room)

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
        now = monotonic()
        if not self._reading_ends:
            self._reading_ends = now + turns.TURN_SECONDS
            if not self._ends:
                self._ends = True
                self.loop.call_soon(self._end_turn)
        return now < self._reading_ends

    def _end_turn(self) -> None:
        """Lets connections read in the next turn, later if this one took long, and writes what is queued."""
        self._ends = False
        if self._reading_ends and not self._reads_later:
            if monotonic() >= self._reading_ends:
                self._reads_later = True
                call_after_turns(self.loop, self._read_on)
            elif self._waiting:
                self._read_on()
            else:
                self._reading_ends = 0.0
        if self._dirty and not self._writes_later:
            self._flush()

    def _read_on(self) -> None:
        self._reading_ends, self._reads_later = 0.0, False
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
        if not self._ends and not self._writes_later:
            self._ends = True
            self.loop.call_soon(self._end_turn)

    def _flush(self) -> None:
        self._writes_later = True
        ends = monotonic() + turns.TURN_SECONDS
        while self._dirty:
            connection = self._dirty.popleft()
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - the other connections still write
                connection.fail()
            if self._dirty and monotonic() >= ends:
                call_after_turns(self.loop, self._flush)
                return
        self._writes_later = False
