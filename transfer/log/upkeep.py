"""Gives back the log's room in the background: what retention lets go, and what one old message pins."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.transports.errors import Again, Closed, LogFull

if TYPE_CHECKING:
    from transfer.log import Log

    #: starts a thread of this name that does this work
    Start = Callable[[str, Callable[[], object]], threading.Thread]

_log = logging.getLogger("transfer.log")
#: seconds between two rounds
EVERY = 60.0
#: seconds after a round that a full log has begun and that gave nothing back
_PAUSE = 2.0
#: seconds that a round has to end
_END = 60.0


class Upkeep:
    """A thread that looks after the log, at once when it is full. removed: segments that went by it.

    start: of whoever owns the log, and hears when the thread ends too early.
    """

    def __init__(self, log: Log, name: str, start: Start, every: float = EVERY) -> None:
        self.removed = 0
        self._log = log
        self._every = every
        self._closing = threading.Event()
        self._thread = start(name, self._work)

    def close(self) -> None:
        """Ends it; a round that has begun is finished. Idempotent."""
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
