"""Commits a log on a separate thread: one sync for all records appended since the last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.transports.errors import Again, InternalError, TransferError

if TYPE_CHECKING:
    from transfer.log import Log

_log = logging.getLogger("transfer.log")
#: seconds after which a commit is repeated
_COMMIT_TIMEOUT = 60.0
#: seconds after which an idle thread checks again
_IDLE = 60.0
#: seconds that `close` waits for the thread
_END = 60.0
#: average seconds of recent commits, up to which a caller may commit on the calling thread
_FAST = 0.001
#: the average's first value, and the weight of the last commit in it
_FIRST_AVERAGE, _WEIGHT = 0.01, 0.125


class GroupCommitter:
    """A thread that commits the log. Thread-safe.

    committed: called with a sequence when all records up to it are on the disk; if it raises, the committer
    fails. failed: called once, when the committer fails. Both are called on the thread; `failed` also on the
    thread that calls `fail`. failure: the error with which it failed.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        committed: Callable[[int], object],
        failed: Callable[[TransferError], object],
    ) -> None:
        self.failure: TransferError | None = None
        self._log = log
        self._committed = committed
        self._failed = failed
        self._lock = threading.Condition()
        self._wanted = self._done = -1
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._closing = False
        self._average = _FIRST_AVERAGE  # seconds of a commit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, sequence: int) -> None:
        """Requests a commit of this record."""
        with self._lock:
            if sequence > self._wanted and sequence > self._done:
                self._wanted = sequence
                self._lock.notify()

    def when_committed(self, sequence: int, done: Callable[[], object]) -> None:
        """Calls `done` on the thread when this record is on the disk; never if the log fails."""
        with self._lock:
            if self.failure is None:
                self._wanted = max(self._wanted, sequence)
                self._waiting.append((sequence, done))
                self._lock.notify()

    def commit_here(self, sequence: int) -> bool:
        """Commits on the calling thread. Returns False if recent commits were slow or one is under way.

        Does not call `committed`. Raises TransferError if the log has failed. Only for the thread that also
        calls `want`. A slow commit prevents further ones here for a while.
        """
        with self._lock:
            if self._average > _FAST or self._wanted > self._done or self._closing:
                return False
        return self._commit(sequence)

    def fail(self, error: TransferError) -> None:
        """Ends with an error: commits no more, and calls no `done`. Later errors are ignored."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self._waiting.clear()
            self._lock.notify()
        self._failed(error)

    def check(self) -> None:
        """Checks whether the log still works, after an error of it."""
        try:
            self._log.range("")
        except InternalError as error:
            self.fail(error)

    def close(self) -> None:
        """Ends the thread; commits the requested records first, if the disk still works. Idempotent."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_END)
            if self._thread.is_alive():
                _log.critical("the disk hangs: thread %s has not ended in %g s", self._thread.name, _END)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except TransferError as error:
            self.fail(error)
        except BaseException as error:  # noqa: BLE001 - any error ends the commits
            _log.exception("the thread %s has ended", self._thread.name)
            self.fail(InternalError(f"the thread {self._thread.name} has ended: {error!r}"))

    def _round(self) -> bool:
        """Makes one commit, for all that wait for it. Returns False if the thread ends."""
        with self._lock:
            while self._wanted <= self._done and not self._waiting:
                if self._closing or self.failure is not None:
                    return False
                self._lock.wait(_IDLE)
            if self.failure is not None:
                return False
            wanted, (waiting, self._waiting) = self._wanted, (self._waiting, [])
        if not self._commit(wanted):
            with self._lock:
                self._waiting[:0] = waiting
                return not self._closing
        self._committed(wanted)
        for _, done in waiting:
            try:
                done()
            except Exception:  # noqa: BLE001 - the other callbacks must be called
                _log.exception("a callback of a commit failed")
        return True

    def _commit(self, wanted: int) -> bool:
        """Commits; returns False if another thread syncs for very long.
        Raises TransferError if the log failed."""
        begun = time.monotonic()
        try:
            self._log.commit(wanted, timeout=_COMMIT_TIMEOUT)
        except Again:
            return False
        except TransferError as error:
            self.fail(error)
            raise
        except Exception as error:
            _log.exception("the log cannot be committed")
            failure = InternalError(f"the log cannot be committed: {error!r}")
            self.fail(failure)
            raise failure from error
        self._average += _WEIGHT * (time.monotonic() - begun - self._average)
        self._done = max(self._done, wanted)
        return True
