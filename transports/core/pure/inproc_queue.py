"""The queues of a pair of streams inside one process, for `inproc_stream.py`. One lock guards both."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from transfer.transports.core.pure.frame import Frame


class InprocEnd:
    """See `core/contract.pyi`."""

    _other: Any
    _lock: threading.Lock

    def __init__(self) -> None:
        self.sent = self.sent_bytes = self.queued = self.queued_bytes = 0
        self.send_high_water, self.send_high_water_bytes = 1000, 64 << 20
        self.received = self.received_bytes = self.consumed = self.confirmed = self.dropped = 0
        self.last_sent_ns = self.last_received_ns = 0
        self.max_message = self.socket_type = 0
        self.credits = self._credit_due = self._closed = False
        self.broken: BaseException | None = None
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.handed: list[Frame] | None = None
        self._given: Any = None
        self._incoming: deque[Any] = deque()
        self._room_wanted = False
        self._taken = 0

    def _join(self, other: Any) -> None:
        self._other, other._other = other, self

    # -- the sending end -------------------------------------------------------------------------

    def _is_full(self, size: int) -> bool:
        if not self.queued:
            return False  # a single message is always accepted, however large
        if 0 < self.send_high_water <= self.queued:
            return True
        return 0 < self.send_high_water_bytes < self.queued_bytes + size

    def _has_no_room(self, size: int) -> bool:
        with self._lock:
            full = self._is_full(size)
            self._room_wanted = self._room_wanted or full
            return full

    def _put(self, message: Any, size: int, control: bool, force: bool) -> int:
        with self._lock:
            if self.broken is not None:
                return -1
            if not force and self._is_full(size):
                self._room_wanted = True
                return 0
            self._other._incoming.append(message)
            number = self.sent + 1
            if not control:
                self.sent = number
                self.sent_bytes += size
                self.queued += 1
                self.queued_bytes += size
            self.last_sent_ns = time.monotonic_ns()
            return number

    # -- the receiving end -----------------------------------------------------------------------

    @property
    def _next_number(self) -> int:
        return self._taken + 1

    def _first(self) -> Any:
        with self._lock:
            return None if self._closed or not self._incoming else self._incoming[0]

    def _hand(self, queued: Any, message: Any, frames: list[Frame], size: int, control: bool) -> None:
        # No call before the last one: a signal handler runs before all of it, and the message is still
        # queued, or after it.
        now = time.monotonic_ns()
        with self._lock:
            other, incoming = self._other, self._incoming
            if not incoming or incoming[0] is not queued:  # both ends were closed in the meantime
                return
            self.last_received_ns = now
            if not control:
                self._taken += 1
            if not control and other.queued:
                other.queued -= 1
                other.queued_bytes -= size
            self.handed, self._given = frames, message
            incoming.popleft()

    def _wake_writer(self) -> None:
        other = self._other
        if other._room_wanted and not other._is_full(1):
            other._room_wanted = False
            if other.on_writable is not None:
                other.on_writable()

    def _remove(self, queued: Any) -> None:
        if self._incoming and self._incoming[0] is queued:
            self._incoming.popleft()

    def consume(self, frames: list[Frame]) -> None:
        other, wake = self._other, None
        nbytes = sum(map(len, frames))
        try:
            with self._lock:
                # No call in between: a signal handler runs before all of it or after it.
                self.received += 1
                self.received_bytes += nbytes
                self.consumed = self.received
                if self.credits and not other._credit_due:
                    other._credit_due = True
                    wake = other.on_readable
            if wake is not None:
                wake()
        except BaseException:  # a signal handler raised: the rest of the work is done all the same
            if other.on_readable is not None:
                other.on_readable()
            raise

    # -- the end ---------------------------------------------------------------------------------

    def _clear(self) -> list[Any]:
        left = list(self._incoming)
        self._incoming.clear()
        return left
