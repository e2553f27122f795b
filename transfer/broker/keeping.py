"""Syncs the broker's log on a thread of its own, for all who wait, and tells the loop how far it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from transports.errors import Again, InternalError, TransferError

if TYPE_CHECKING:
    from transfer.log import Log

_Word = TypeVar("_Word")
_log = logging.getLogger("transfer.broker")
#: seconds that one sync is waited for, before it is asked for again
_PATIENCE = 3600.0


class Keeper:
    """A thread that commits the log. `want` and `close` are called on the loop.

    kept: called on the loop with a record's sequence when all up to it is on the disk. failed: called there
    once if the log fails; nothing is told to be kept any more.
    """

    def __init__(
        self,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        kept: Callable[[int], None],
        failed: Callable[[TransferError], None],
    ) -> None:
        self._log = log
        self._loop = loop
        self._kept = kept
        self._failed = failed
        self._lock = threading.Condition()
        self._wanted = -1
        self._done = -1
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="transfer-broker-sync", daemon=True)
        self._thread.start()

    def want(self, sequence: int) -> None:
        """This record shall be on the disk soon."""
        with self._lock:
            if sequence > self._wanted:
                self._wanted = sequence
                self._lock.notify()

    def close(self) -> None:
        """What was wanted is synced first; the loop is not told of it any more. Idempotent."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                while self._wanted <= self._done and not self._closing:
                    self._lock.wait()
                wanted = self._wanted
            if wanted <= self._done:
                return
            try:
                self._log.commit(wanted, timeout=_PATIENCE)
            except Again:
                continue  # somebody else syncs, for very long
            except TransferError as error:
                self._tell(self._failed, error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing is kept any more
                _log.exception("the log cannot be synced")
                self._tell(self._failed, InternalError(f"the log cannot be synced: {error!r}"))
                return
            self._done = wanted
            self._tell(self._kept, wanted)

    def _tell(self, told: Callable[[_Word], None], word: _Word) -> None:
        if not self._closing:
            self._loop.call_soon_threadsafe(told, word)
