"""A thread pool for work on large payloads: most of it runs without the interpreter's lock."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from transfer.broker.service_threads import ServiceThreads
from transfer.transports.errors import InternalError, TransferError

if TYPE_CHECKING:
    from transfer.broker.config.settings import FastPath

_log = logging.getLogger("transfer.broker")

T = TypeVar("T")
#: called with the result, or the error
Done = Callable[[T | TransferError], None]


class OffloadPool:
    """Runs work on large payloads on threads. Used on the broker's loop. threads: their number (FastPath).

    counts: "offloaded" counts work that a thread completed, "offload_in_place" work that the loop did because
    the thread failed, "offload_failed" work that was not done because `FastPath.in_place` is false.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: FastPath,
        counts: Counter[str],
        threads: ServiceThreads | None = None,
    ) -> None:
        self._counts = counts
        self._loop = loop
        self._settings = settings
        self.threads = settings.threads
        initializer = threads.add_current if threads is not None else None
        self._pool = ThreadPoolExecutor(self.threads, "transfer-broker-offload", initializer)

    def close(self) -> None:
        """Waits for work that has begun, without calling `done`. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def takes(self, nbytes: int) -> bool:
        """Whether a payload of so many bytes is large enough."""
        return nbytes >= self._settings.cutover

    def run(self, work: Callable[[], T], done: Done[T]) -> None:
        """Does the work on a thread, then calls `done` on the loop, with the result or a TransferError.

        After any other exception the loop repeats the work (see FastPath).
        """

        begun, made = threading.Lock(), Future[T]()
        made.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._report, made, work, done))

        def once() -> None:
            if begun.acquire(blocking=False):
                try:
                    made.set_result(work())
                except BaseException as error:  # noqa: BLE001 - `_report` handles it
                    made.set_exception(error)

        try:
            self._pool.submit(once)
        except RuntimeError as error:  # no thread can be started; the pool keeps the work for one that can
            if begun.acquire(blocking=False):
                self._in_place(error, work, done)

    def _report(self, future: Future[T], work: Callable[[], T], done: Done[T]) -> None:
        error = future.exception()
        if error is None:
            self._counts["offloaded"] += 1
            done(future.result())
        elif isinstance(error, TransferError):
            self._counts["offloaded"] += 1
            done(error)
        else:
            self._in_place(error, work, done)

    def _in_place(self, error: BaseException, work: Callable[[], T], done: Done[T]) -> None:
        if not self._settings.in_place:
            self._counts["offload_failed"] += 1
            _log.error("work on a large payload failed: %r", error)
            done(InternalError(f"work on a large payload failed: {error!r}"))
            return
        self._counts["offload_in_place"] += 1
        _log.warning("work on a large payload failed on its thread, so the loop repeats it: %r", error)
        try:
            made: T | TransferError = work()
        except TransferError as refused:
            made = refused
        except Exception as again:  # noqa: BLE001 - the caller gets it as an InternalError
            _log.exception("work on a large payload failed on the loop too")
            made = InternalError(f"work on a large payload failed: {again!r}")
        done(made)
