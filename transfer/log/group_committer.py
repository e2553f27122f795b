"""Commits a log on a thread of its own: one sync for all that was appended meanwhile."""

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
#: seconds that one commit may take before it is asked for again
_PATIENCE = 60.0
#: seconds after which an idle thread looks again
_IDLE = 60.0
#: seconds that the thread has to end
_END = 60.0
#: seconds of a commit, as they were lately, up to which a caller may commit on its own thread
_QUICK = 0.001
#: what a commit is taken to last before any was made, and how much the last one counts
_AT_FIRST, _WEIGHT = 0.01, 0.125


class GroupCommitter:
    """A thread that commits the log. Thread-safe.

    committed: called with a record's sequence when all up to it is on the disk; if it raises, the committer
    has failed. failed: called once, when nothing can be committed any more. Both are called on the thread;
    `failed` also on the thread that calls `fail`. failure: why it has failed.
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
        self._usual = _AT_FIRST  # seconds of a commit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, sequence: int) -> None:
        """Has this record committed soon."""
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
        """Commits on the caller's thread, if commits were quick lately and none is under way; else it does
        nothing and returns False. `committed` is not called. Raises TransferError: the log has failed.

        For one thread, which also calls `want`: a commit that turns out slow is the last one for a while.
        """
        with self._lock:
            if self._usual > _QUICK or self._wanted > self._done or self._closing:
                return False
        return self._commit(sequence)

    def fail(self, error: TransferError) -> None:
        """Nothing is committed any more, and `done` of nobody is called. The first error counts."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self._waiting.clear()
            self._lock.notify()
        self._failed(error)

    def check(self) -> None:
        """Looks whether the log still works, after an error of it."""
        try:
            self._log.range("")
        except InternalError as error:
            self.fail(error)

    def close(self) -> None:
        """Ends the thread; what was asked for is committed first, if the disk still works. Idempotent."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(_END)
            if self._thread.is_alive():
                _log.critical("the disk does not answer: %s has not ended in %g s", self._thread.name, _END)

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except TransferError as error:
            self.fail(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, nothing is committed any more
            _log.exception("the thread %s has ended", self._thread.name)
            self.fail(InternalError(f"the thread {self._thread.name} has ended: {error!r}"))

    def _round(self) -> bool:
        """One commit, for all that wait for it. False: the thread ends."""
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
            except Exception:  # noqa: BLE001 - the others are called all the same
                _log.exception("a callback of a commit failed")
        return True

    def _commit(self, wanted: int) -> bool:
        """False: another thread syncs, for very long. Raises TransferError: the log has failed."""
        begun = time.monotonic()
        try:
            self._log.commit(wanted, timeout=_PATIENCE)
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
        self._usual += _WEIGHT * (time.monotonic() - begun - self._usual)
        self._done = max(self._done, wanted)
        return True
