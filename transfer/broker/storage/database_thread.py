"""The thread that writes the broker's database and audit, so that the loop does not block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from transfer.broker.service_threads import ServiceThreads
from transfer.transports.errors import InternalError, TransferError

_log = logging.getLogger("transfer.broker")
OnComplete = Callable[[TransferError | None], None]


class DatabaseThread:
    """Runs jobs in order, on one thread. Used on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ServiceThreads | None = None) -> None:
        self._loop = loop
        initializer = threads.add_current if threads is not None else None
        self._pool = ThreadPoolExecutor(1, "transfer-broker-state", initializer)
        self._closed = False

    def do(self, work: Callable[[], object], on_complete: OnComplete | None = None) -> None:
        """Calls `work` on the thread, then `on_complete` on the loop: with None, or with the error."""
        if not self._closed:
            self._pool.submit(self._do, work, on_complete)

    def close(self) -> None:
        """Finishes all queued jobs, without further calls of `on_complete`. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=True)

    def _do(self, work: Callable[[], object], on_complete: OnComplete | None) -> None:
        failed: TransferError | None = None
        try:
            work()
        except TransferError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - on_complete reports it
            _log.exception("the broker's state cannot be written")
            failed = InternalError(f"the broker's state cannot be written: {error!r}")
        if on_complete is not None and not self._closed:
            self._loop.call_soon_threadsafe(on_complete, failed)
        elif failed is not None:
            _log.error("%s", failed)
