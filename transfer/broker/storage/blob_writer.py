"""Puts a payload that comes in pieces into the log, on a thread beside the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.service_threads import ServiceThreads
from transfer.transports.errors import Closed, InternalError, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Buffer
    from transfer.broker.delivery.streaming_publish import Publisher
    from transfer.log.blob_writer import BlobWriter

_log = logging.getLogger("transfer.broker")
#: bytes that may wait for the disk before whoever publishes them has to
_AHEAD = 32 << 20
#: seconds between two tries when the log is full
_FULL_PAUSE = 0.5
#: seconds that a payload waits for room in its middle, where what it has holds the log's oldest part
_FULL_PATIENCE = 30.0

#: called on the loop: all bytes are written and the record can be appended (None), or why not. It may raise
#: LogFull, and is called again then
Written = Callable[[TransferError | None], None]


def _no_callback(error: TransferError | None) -> None:
    """Replaces the callback when it was called or never will be. The callback refers to the connection, which
    would be freed only by the garbage collector."""


class BlobWriterThread:
    """The thread that writes large payloads. One that waits for room in a full log lets others go on.

    full: payloads that wait so. open: payloads whose record is not appended yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ServiceThreads) -> None:
        self.loop = loop
        self.closing = threading.Event()
        self.full: set[BlobWrite] = set()
        self.open: set[BlobWrite] = set()
        self._pool = ThreadPoolExecutor(1, "transfer-broker-disk", threads.add_current)

    def do(self, work: Callable[[], object]) -> None:
        """Calls it on the thread, behind what was given before; not at all behind `close`."""
        if not self.closing.is_set():
            self._pool.submit(work)

    def tell(self, on_complete: Callable[[], object]) -> None:
        """Calls it on the loop."""
        if not self.closing.is_set():
            self.loop.call_soon_threadsafe(on_complete)

    def stop(self) -> None:
        """Ends the thread, behind all that it was given. Idempotent."""
        self.closing.set()
        self._pool.shutdown(wait=True)
        for writing in list(self.full):
            writing.fail(Closed("the broker ends"))

    def close(self) -> None:
        """The same; payloads that have no record are given up. Idempotent."""
        self.stop()
        for writing in list(self.open):
            writing.give_up()


class BlobWrite:
    """The payload of one message on its way to the disk. Used on the broker's loop.

    Whoever publishes is paused while much waits for the disk, and from `finish` until `written` was told:
    so what it publishes next stands behind it. `written` then calls `commit` or `abandon`. A full log is
    waited for: before the first byte is written as long as it is full, in the middle for `_FULL_PATIENCE`.
    hold False: it is not, and `written` is told LogFull.
    """

    def __init__(
        self,
        writer: BlobWriterThread,
        opened: Callable[[], BlobWriter],
        publisher: Publisher,
        written: Written,
        *,
        hold: bool = True,
    ) -> None:
        self._thread = writer
        self._hold = hold
        self._opened = opened
        self._publisher = publisher
        self._written = written
        #: the publisher that wants to know, if it said so only at the end
        self.on_complete: Callable[[TransferError | None], None] | None = None
        self._blob: BlobWriter | None = None
        self.nbytes = 0  # that were given
        self._pieces: deque[Buffer | None] = deque()  # that are to be written; None: the end
        self._due = 0  # how many of them have had their turn
        self._full_since = 0.0
        self._waiting = 0
        self._paused = self._given_up = False
        self._failed: TransferError | None = None
        self._thread.open.add(self)

    def write(self, data: Buffer) -> None:
        """The next bytes, which are kept until they are written."""
        self.nbytes += len(data)
        self._waiting += len(data)
        self._pieces.append(data)
        self._thread.do(self._write_on)
        self._look()

    def finish(self) -> None:
        """All bytes were given: `written` is told when they are."""
        self._publisher.pause()
        self._pieces.append(None)
        self._thread.do(self._write_on)

    @property
    def behind(self) -> bool:
        """Whoever publishes is paused, since much waits for the disk."""
        return self._paused

    @property
    def failure(self) -> TransferError | None:
        """Why it cannot be written, as far as the thread has come."""
        return self._failed

    def commit(self, body: bytes) -> tuple[int, int]:
        """Appends the record: (sequence, offset). Raises LogFull, Closed, InternalError."""
        assert self._blob is not None
        appended = self._blob.commit(body)
        self._thread.open.discard(self)
        return appended

    def abandon(self) -> None:
        """The rest will not come; what was written is given back. Idempotent."""
        if not self._given_up:
            self._given_up = True
            self._written = _no_callback
            self._thread.do(self.give_up)

    # -- on the writer's thread --------------------------------------------------------------------------

    def _write_on(self) -> None:
        """The next piece, or the end; in the order in which all payloads were given theirs."""
        self._due += 1
        if self not in self._thread.full:  # then `_try_again` comes
            self._write_due()

    def _try_again(self) -> None:
        self._thread.full.discard(self)
        self._write_due()

    def _write_due(self) -> None:
        while self._due:
            data = self._pieces[0]
            try:
                if self._failed is None and not self._given_up:
                    self._write(data)
            except LogFull as error:
                if not self._full_since:
                    _log.warning("%s", error)
                if not self._is_late():
                    self._wait_for_room()
                    return
                self._failed = error
            except TransferError as error:
                self._failed = error
            except Exception as error:  # noqa: BLE001 - whoever publishes is told, and others go on
                _log.exception("a payload cannot be written")
                self._failed = InternalError(f"a payload cannot be written: {error!r}")
            self._pieces.popleft()
            self._due -= 1
            self._full_since = 0.0
            self._thread.tell(self._finished if data is None else partial(self._wrote, len(data)))

    def _write(self, data: Buffer | None) -> None:
        """Raises LogFull; nothing is written then, and of what has not begun nothing is held."""
        begun = self._blob is not None
        if self._blob is None:
            self._blob = self._opened()
        try:
            if data is not None:
                self._blob.write(data)
        except LogFull:
            if not begun:
                self._blob.abandon()
                self._blob = None
            raise

    def _is_late(self) -> bool:
        now = time.monotonic()
        self._full_since = self._full_since or now
        late = self._blob is not None and now - self._full_since >= _FULL_PATIENCE
        return late or not self._hold

    def _wait_for_room(self) -> None:
        self._thread.full.add(self)
        if self._thread.closing.is_set():
            self.fail(Closed("the broker ends"))
            return
        again = partial(self._thread.do, self._try_again)
        self._thread.tell(partial(self._thread.loop.call_later, _FULL_PAUSE, again))

    def fail(self, error: TransferError) -> None:
        """It cannot be written. On the thread, or when that has ended."""
        self._failed = self._failed or error
        self._thread.full.discard(self)

    def give_up(self) -> None:
        """Gives back what was written. On the thread, or when that has ended."""
        self._thread.open.discard(self)
        self._thread.full.discard(self)
        if self._blob is not None:
            try:
                self._blob.abandon()
            except TransferError as error:
                _log.warning("what was written of a message cannot be given back: %s", error)

    # -- on the loop -------------------------------------------------------------------------------------

    def _wrote(self, nbytes: int) -> None:
        self._waiting -= nbytes
        self._look()

    def _finished(self) -> None:
        try:
            self._written(self._failed)
        except LogFull as error:
            if not self._full_since:
                self._full_since = time.monotonic()
                _log.warning("%s", error)
            if self._hold:
                self._thread.loop.call_later(_FULL_PAUSE, self._finished)
                return
            self._written(error)
        except Exception:  # noqa: BLE001 - others go on
            _log.exception("a payload that was written is not kept")
        self._written = _no_callback
        self._publisher.resume()

    def _look(self) -> None:
        behind = self._waiting > _AHEAD
        if behind != self._paused:
            self._paused = behind
            if behind:
                self._publisher.pause()
            else:
                self._publisher.resume()
