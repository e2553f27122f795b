"""Messages of programs that take longer than a turn of the loop: each program waits for itself alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from transfer.broker import turns
from transfer.broker.turns import call_after_turns

if TYPE_CHECKING:
    from transfer.broker.fronts.native_sockets import LoopSocket

#: bytes of messages that may wait of connections that cannot be held; beyond it the front receives nothing
_MOST_WAITING = 64 << 20

_Call = Callable[[], None]


class Backlog:
    """What is left to do of each program, in the order in which it was received. On the broker's loop.

    As long as something is left of a program, its connection is held: more of it stays with its sender.
    Programs take turns of some milliseconds, and the front receives from others in between. What a program
    sent before its connection ended is in memory already and waits here, as do messages of connections that
    cannot be held.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, front: LoopSocket) -> None:
        self._loop = loop
        self._front = front
        self._waiting: dict[bytes, deque[tuple[_Call, int]]] = {}
        self._held: dict[bytes, list[Any]] = {}
        self._nbytes = 0
        self._due = False
        self._paused = False

    def holds(self, identity: bytes) -> bool:
        """Whether something is left to do of a program."""
        return identity in self._waiting

    def add(self, identity: bytes, call: _Call, frames: list[Any]) -> None:
        """Keeps a message of a program of which something is left."""
        nbytes = 0 if self._hold(identity) else sum(map(_size, frames))
        self._waiting[identity].append((call, nbytes))
        self._nbytes += nbytes
        if self._nbytes > _MOST_WAITING and not self._paused:
            self._paused = True
            self._front.pause()

    def go_on_with(self, identity: bytes, call: _Call) -> None:
        """Does the rest of a message in a later turn, before all else that waits of this program."""
        waiting = self._waiting.get(identity)
        if waiting is None:
            waiting = self._waiting[identity] = deque()
            self._hold(identity)
        waiting.appendleft((call, 0))
        self._soon()

    def close(self) -> None:
        """Nothing of it is done any more."""
        self._waiting.clear()
        self._held.clear()

    def _hold(self, identity: bytes) -> bool:
        """Holds the connection of the newest message. True also for what a lost connection left: that is in
        memory anyway, and no other program shall wait for it."""
        stream = self._front.socket._newest_stream
        held = self._held.setdefault(identity, [])
        if stream in held or getattr(stream, "ended", False):
            return True
        if stream is None or not self._front.socket._pause_reading(stream):
            return False
        held.append(stream)
        return True

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            call_after_turns(self._loop, self._take_turn)

    def _take_turn(self) -> None:
        """Some milliseconds for the program that has waited longest."""
        self._due = False
        if not self._waiting or self._front.socket.closed:
            return
        identity = next(iter(self._waiting))
        waiting = self._waiting.pop(identity)
        self._waiting[identity] = waiting  # the last one now
        ends = monotonic() + turns.TURN_SECONDS
        while waiting:
            call, nbytes = waiting.popleft()
            self._nbytes -= nbytes
            self._front.attempt(call)
            if monotonic() >= ends:
                break
        if not waiting:
            self._done(identity)
        if self._paused and self._nbytes <= _MOST_WAITING // 2:
            self._paused = False
            self._front.resume()
        if self._waiting:
            self._soon()
        self._front.end_turn()

    def _done(self, identity: bytes) -> None:
        self._waiting.pop(identity, None)
        held = self._held.pop(identity, ())
        for stream in held:
            self._front.socket._resume_reading(stream)
        if held:
            self._front.listen_again()


def _size(frame: Any) -> int:
    return len(frame) if isinstance(frame, bytes) else len(frame.data)
