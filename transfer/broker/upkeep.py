"""Gives back the log's room in the background: what retention lets go, and what one old message pins."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from transports.errors import Closed, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.log import Log

_log = logging.getLogger("transfer.broker")
#: seconds between two rounds
EVERY = 60.0


class Upkeep:
    """A thread that looks after the log. removed: segments that went by it."""

    def __init__(self, log: Log, every: float = EVERY) -> None:
        self.removed = 0
        self._log = log
        self._every = every
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="transfer-broker-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it; a round that has begun is finished. Idempotent."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closing.wait(self._every):
            try:
                self.removed += self._log.collect() + self._log.compact()
            except Closed:
                return
            except LogFull as error:
                _log.warning("the log cannot be compacted: %s", error)
            except TransferError as error:
                _log.error("the log's upkeep has ended: %s", error)
                return
