"""Frees the log's room in the background: applies retention, and compacts segments that need few messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.transports.errors import Again, Closed, LogFull

if TYPE_CHECKING:
    from transfer.log import Log

    #: starts a thread of this name with this work
    Start = Callable[[str, Callable[[], object]], threading.Thread]

_log = logging.getLogger("transfer.log")
#: seconds between two rounds
_EVERY = 60.0
#: seconds after a round for a full log that freed nothing
_PAUSE = 2.0
#: seconds that `close` waits for a round
_END = 60.0


class Upkeep:
    """A thread that frees the log's room periodically, and at once when the log is full.

    removed: number of segments that it removed. start: the owner's function, which detects when the thread
    ends too early.
    """

    def __init__(self, log: Log, name: str, start: Start, every: float = _EVERY) -> None:
        self.removed = 0
        self._log = log
        self._every = every
        self._closing = threading.Event()
        self._thread = start(name, self._work)

    def close(self) -> None:
        """Ends the thread after the current round. Idempotent."""
        self._closing.set()
        self._log.full.set()
        self._thread.join(_END)

    def _work(self) -> None:
        while not self._closing.is_set():
            full = self._log.full.wait(self._every)
            if self._closing.is_set():
                return
            self._log.full.clear()
            removed = 0
            try:
                removed = self._log.collect() + self._log.compact()
                self.removed += removed
            except Closed:
                return
            except (LogFull, Again) as error:
                _log.warning("the log cannot be compacted: %s", error)
            if full and not removed:
                self._closing.wait(min(_PAUSE, self._every))
