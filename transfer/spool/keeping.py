"""Waits for the disk on behalf of all: what was appended is synced together, then those who wait are told."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from transfer.log import Log
from transports.errors import InternalError, TransferError

_log = logging.getLogger("transfer.spool")


class Keeper:
    """A thread that commits the log. Thread-safe.

    kept: called first when all up to a record is on the disk. woken: called after each round, when books may
    have changed. failed: called once if the log fails; nobody is told then that anything was kept.
    """

    def __init__(
        self,
        log: Log,
        kept: Callable[[int], None],
        woken: Callable[[], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._kept = kept
        self._woken = woken
        self._failed = failed
        self._lock = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._closing = False
        self.failure: TransferError | None = None
        self._thread = threading.Thread(target=self._work, name="transfer-spool-sync", daemon=True)
        self._thread.start()

    def when_kept(self, sequence: int, told: Callable[[], None]) -> None:
        """Calls `told`, on this thread of its own, when the log has this record on the disk."""
        with self._lock:
            if self.failure is None:
                self._waiting.append((sequence, told))
                self._lock.notify()

    def close(self) -> None:
        """What waits is told first, if the disk still works."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join()

    def fail(self, error: TransferError) -> None:
        """The log has failed. Those who wait find out by their connection's end. Any thread."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self._waiting.clear()
            self._lock.notify()
        _log.critical("the spool's log has failed: %s", error)
        self._failed()

    def check(self) -> None:
        """Looks whether the log still works, after an error of it."""
        try:
            self._log.range("")
        except InternalError as error:
            self.fail(error)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closing and self.failure is None:
                    self._lock.wait()
                round_, self._waiting = self._waiting, deque()
            if not round_:
                return
            try:
                sequence = max(sequence for sequence, _ in round_)
                self._log.commit(sequence, timeout=float("inf"))
                self._kept(sequence)
            except TransferError as error:
                self.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing is kept any more
                _log.exception("the spool cannot book what it kept")
                self.fail(InternalError(f"the spool cannot book what it kept: {error!r}"))
                return
            for _, told in round_:
                try:
                    told()
                except Exception:  # noqa: BLE001 - the others are told all the same
                    _log.exception("whoever waited for the disk could not be told")
            self._woken()
