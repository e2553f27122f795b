"""The state of the dialogue of a REQ or a REP, for many threads."""

from __future__ import annotations

import threading
from typing import Any

from transfer.transports import req_rep_turn
from transfer.transports.errors import StateError


class Turn(req_rep_turn.Turn):
    """The state with a lock around each step, and one more for each side, which one thread at a time may
    hold. Thread-safe. The compiled core's needs no first lock: the GIL makes each step atomic."""

    __slots__ = ("_holders", "_lock", "_sides")

    def __init__(self) -> None:
        super().__init__()
        # Reentrant: dropping an object in a step may run Python code that calls this class.
        self._lock = threading.RLock()
        self._sides = threading.Lock(), threading.Lock()
        self._holders = [0, 0]

    def enter(self, side: int, seconds: float) -> bool:
        """Takes a side; see `Turn` in core/contract.pyi."""
        me = threading.get_ident()
        # `map`: no signal handler runs between taking the lock and recording its holder.
        [taken] = map(self._sides[side].acquire, (False,))
        if not taken:
            if self._holders[side] == me:
                raise StateError(
                    "this thread is in the middle of such a call",
                    hint="do not use a socket in a signal handler",
                )
            if seconds > 0:
                [taken] = map(self._sides[side].acquire, (True,), (seconds,))
        if taken:
            self._holders[side] = me
        return taken

    def leave(self, side: int) -> None:
        """Releases a side, if this thread has it: a caller that was interrupted in this method calls
        again."""
        if self._holders[side] == threading.get_ident():
            self._holders[side] = 0
            self._sides[side].release()

    def asks(self, stream: Any, number: int, now: int) -> None:
        with self._lock:
            super().asks(stream, number, now)

    def answers(self, stream: Any, number: int) -> bool:
        with self._lock:
            return super().answers(stream, number)

    def fails(self, stream: Any, error: BaseException) -> bool:
        with self._lock:
            return super().fails(stream, error)

    def gives_up(self) -> BaseException | None:
        with self._lock:
            return super().gives_up()

    def request_received(self, stream: Any, number: int, simple: bool) -> None:
        with self._lock:
            super().request_received(stream, number, simple)

    def closes(self, stream: Any) -> bool:
        with self._lock:
            return super().closes(stream)
