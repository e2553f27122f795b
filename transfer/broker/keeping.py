"""Syncs the broker's log on a thread of its own, for all who wait, and tells the loop how far it is."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transports.errors import Again, InternalError, TransferError

if TYPE_CHECKING:
    from transfer.log import Log

_log = logging.getLogger("transfer.broker")
#: seconds that one sync is waited for, before it is asked for again
_PATIENCE = 3600.0
#: seconds of a sync, as they were lately, up to which the loop may wait for it
_QUICK = 0.001
#: what a sync is taken to last before any was made, and how much the last one counts
_AT_FIRST, _WEIGHT = 0.01, 0.125


class Keeper:
    """A thread that commits the log. `want`, `sync_here` and `close` are called on the loop.

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
        self._usual = _AT_FIRST  # seconds of a sync
        self._thread = threading.Thread(target=self._work, name="transfer-broker-sync", daemon=True)
        self._thread.start()

    def want(self, sequence: int) -> None:
        """This record shall be on the disk soon."""
        with self._lock:
            if sequence > self._wanted and sequence > self._done:
                self._wanted = sequence
                self._lock.notify()

    def sync_here(self, sequence: int) -> bool:
        """Commits the log on the loop, and tells `kept` or `failed` at once. False, and nothing was done:
        syncs have not been quick lately, or one is under way. One that turns out slow was the last for a
        while."""
        with self._lock:
            if self._usual > _QUICK or self._wanted > self._done or self._closing:
                return False
        # The thread waits: it is given work by this thread alone.
        told, word = self._commit(sequence)
        if told is not None:
            told(word)
        return told is not None

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
            told, word = self._commit(wanted)
            if told is not None and not self._closing:
                self._loop.call_soon_threadsafe(told, word)
            if told == self._failed:
                return

    def _commit(self, wanted: int) -> tuple[Callable[[Any], None] | None, Any]:
        """Whom to tell what; None: somebody else syncs, for very long, and it has to be asked for again."""
        begun = time.monotonic()
        try:
            self._log.commit(wanted, timeout=_PATIENCE)
        except Again:
            return None, None
        except TransferError as error:
            return self._failed, error
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is kept any more
            _log.exception("the log cannot be synced")
            return self._failed, InternalError(f"the log cannot be synced: {error!r}")
        self._usual += _WEIGHT * (time.monotonic() - begun - self._usual)
        self._done = wanted
        return self._kept, wanted
