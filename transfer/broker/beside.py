"""Work on large payloads on threads beside the loop: what takes long there lets go of the interpreter."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from transfer.broker.service_threads import ServiceThreads
from transports.errors import InternalError, TransferError

if TYPE_CHECKING:
    from transfer.broker.settings import FastPath

_log = logging.getLogger("transfer.broker")

T = TypeVar("T")
#: is given what the work made, or why it could not be done
Done = Callable[[T | TransferError], None]


class Beside:
    """Threads for what takes long. On the broker's loop. threads: how many, by FastPath.

    counts: gets "beside" for what it did; "beside_in_place" for what the loop did after all, since the
    thread could not; "beside_failed" for what nobody did, since `FastPath.in_place` is false.
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
        self._pool = ThreadPoolExecutor(self.threads, "transfer-broker-beside", initializer)

    def close(self) -> None:
        """What was begun is done; nobody is told of it any more. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def takes(self, nbytes: int) -> bool:
        """Whether a payload of so many bytes is large enough."""
        return nbytes >= self._settings.cutover

    def run(self, work: Callable[[], T], done: Done[T]) -> None:
        """Does the work beside the loop, then calls `done` on it. Errors of ours that the work raises are its
        answer; whatever else goes wrong is the thread's, and the loop does the work (see FastPath)."""

        def ended(future: Future[T]) -> None:
            if not future.cancelled():
                self._loop.call_soon_threadsafe(self._tell, future, work, done)

        try:
            future = self._pool.submit(work)
        except RuntimeError as error:  # no thread can be started
            self._in_place(error, work, done)
            return
        future.add_done_callback(ended)

    def _tell(self, future: Future[T], work: Callable[[], T], done: Done[T]) -> None:
        error = future.exception()
        if error is None:
            self._counts["beside"] += 1
            done(future.result())
        elif isinstance(error, TransferError):
            self._counts["beside"] += 1
            done(error)
        else:
            self._in_place(error, work, done)

    def _in_place(self, error: BaseException, work: Callable[[], T], done: Done[T]) -> None:
        if not self._settings.in_place:
            self._counts["beside_failed"] += 1
            _log.error("work beside the loop failed: %r", error)
            done(InternalError(f"work on a large payload failed: {error!r}"))
            return
        self._counts["beside_in_place"] += 1
        _log.warning("work beside the loop failed, and is done in place: %r", error)
        try:
            made: T | TransferError = work()
        except TransferError as refused:
            made = refused
        except Exception as again:  # noqa: BLE001 - whoever waits is told
            _log.exception("it failed in place too")
            made = InternalError(f"work on a large payload failed: {again!r}")
        done(made)
