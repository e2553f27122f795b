"""Writes payloads that arrive in pieces into the log, on the disk thread."""

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
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.streaming_publish import UploadPublisher
    from transfer.log.blob_writer import BlobWriter

_log = logging.getLogger("transfer.broker")
#: bytes that may wait for the disk before their publisher is paused
_MAX_WAITING = 32 << 20
#: seconds between two tries when the log is full
_FULL_PAUSE = 0.5
#: seconds that a partly written payload waits for room: it keeps retention from freeing the log's oldest part
_FULL_TIMEOUT = 30.0

#: called on the loop: with None when all bytes are written and the record can be appended, else with the
#: error. If it raises LogFull, it is called again
OnWritten = Callable[[TransferError | None], None]


def _no_callback(error: TransferError | None) -> None:
    """Replaces the callback once it is no longer needed.
    The callback refers to the connection, which only the garbage collector would free."""


class BlobWriterThread:
    """The thread that writes large payloads. A payload that waits for room does not block the others.
    full: payloads that wait for room in a full log. open: payloads whose record is not appended yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ServiceThreads) -> None:
        self.loop = loop
        self.closing = threading.Event()
        self.full: set[BlobWrite] = set()
        self.open: set[BlobWrite] = set()
        self._pool = ThreadPoolExecutor(1, "transfer-broker-disk", threads.add_current)

    def do(self, work: Callable[[], object]) -> None:
        """Calls `work` on the thread, in order of submission; never after `stop`."""
        if not self.closing.is_set():
            self._pool.submit(work)

    def call_on_loop(self, call: Callable[[], object]) -> None:
        """Calls `call` on the loop; never after `stop`."""
        if not self.closing.is_set():
            self.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """Ends the thread when all submitted work is done. Idempotent."""
        self.closing.set()
        self._pool.shutdown(wait=True)
        for write in list(self.full):
            write.fail(Closed("the broker ends"))

    def close(self) -> None:
        """Ends the thread, and discards payloads without a record. Idempotent."""
        self.stop()
        for write in list(self.open):
            write.discard()


class BlobWrite:
    """Writes the payload of one message to the disk. Used on the broker's loop.

    The publisher is paused while many bytes wait for the disk, and from `finish` until `written` is called,
    so its next message comes after this one. `written` then calls `commit` or `abandon`.
    In a full log the write waits: before the first byte without limit, afterwards for `_FULL_TIMEOUT`.
    hold False: it does not wait; `written` gets LogFull.
    """

    def __init__(
        self,
        writer: BlobWriterThread,
        opened: Callable[[], BlobWriter],
        publisher: UploadPublisher,
        written: OnWritten,
        *,
        hold: bool = True,
    ) -> None:
        self._thread = writer
        self._hold = hold
        self._opened = opened
        self._publisher = publisher
        self._written = written
        #: the publisher's callback, if it is known only at the end
        self.on_complete: Callable[[TransferError | None], None] | None = None
        self._blob: BlobWriter | None = None
        self.nbytes = 0  # passed to `write`
        self._pieces: deque[Buffer | None] = deque()  # not written yet; None: the end
        self._due = 0  # how many of them the thread may write now
        self._full_since = 0.0
        self._waiting = 0
        self._paused = self._abandoned = False
        self._failed: TransferError | None = None
        self._thread.open.add(self)

    def write(self, data: Buffer) -> None:
        """Queues the next bytes, and keeps their buffer until they are written."""
        self.nbytes += len(data)
        self._waiting += len(data)
        self._pieces.append(data)
        self._thread.do(self._write_on)
        self._update_pause()

    def finish(self) -> None:
        """Ends the payload: `written` is called when all bytes are written."""
        self._publisher.pause()
        self._pieces.append(None)
        self._thread.do(self._write_on)

    @property
    def is_paused(self) -> bool:
        """Whether the publisher is paused because too many bytes wait for the disk."""
        return self._paused

    @property
    def failure(self) -> TransferError | None:
        """The error that ended the write, if the thread has met one."""
        return self._failed

    def commit(self, body: bytes) -> tuple[int, int]:
        """Appends the record and returns (sequence, offset). Raises LogFull, Closed, InternalError."""
        assert self._blob is not None
        appended = self._blob.commit(body)
        self._thread.open.discard(self)
        return appended

    def abandon(self) -> None:
        """Ends the write without a record, and frees the written bytes. Idempotent."""
        if not self._abandoned:
            self._abandoned = True
            self._written = _no_callback
            self._thread.do(self.discard)

    # -- on the writer's thread --------------------------------------------------------------------------

    def _write_on(self) -> None:
        """Writes the next piece, or ends; in the order in which pieces of all payloads were queued."""
        self._due += 1
        if self not in self._thread.full:  # else `_try_again` writes it
            self._write_due()

    def _try_again(self) -> None:
        self._thread.full.discard(self)
        self._write_due()

    def _write_due(self) -> None:
        while self._due:
            data = self._pieces[0]
            try:
                if self._failed is None and not self._abandoned:
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
            except Exception as error:  # noqa: BLE001 - the publisher gets the error, other payloads continue
                _log.exception("a payload cannot be written")
                self._failed = InternalError(f"a payload cannot be written: {error!r}")
            self._pieces.popleft()
            self._due -= 1
            self._full_since = 0.0
            self._thread.call_on_loop(self._finished if data is None else partial(self._wrote, len(data)))

    def _write(self, data: Buffer | None) -> None:
        """Writes a piece.
        Raises LogFull and writes nothing then; a payload without bytes keeps no blob open."""
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
        late = self._blob is not None and now - self._full_since >= _FULL_TIMEOUT
        return late or not self._hold

    def _wait_for_room(self) -> None:
        self._thread.full.add(self)
        if self._thread.closing.is_set():
            self.fail(Closed("the broker ends"))
            return
        again = partial(self._thread.do, self._try_again)
        self._thread.call_on_loop(partial(self._thread.loop.call_later, _FULL_PAUSE, again))

    def fail(self, error: TransferError) -> None:
        """Ends the write with an error. On the thread, or when that has ended."""
        self._failed = self._failed or error
        self._thread.full.discard(self)

    def discard(self) -> None:
        """Frees the written bytes. On the thread, or when that has ended."""
        self._thread.open.discard(self)
        self._thread.full.discard(self)
        if self._blob is not None:
            try:
                self._blob.abandon()
            except TransferError as error:
                _log.warning("the written part of a payload cannot be removed: %s", error)

    # -- on the loop -------------------------------------------------------------------------------------

    def _wrote(self, nbytes: int) -> None:
        self._waiting -= nbytes
        self._update_pause()

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
        except Exception:  # noqa: BLE001 - other payloads continue
            _log.exception("a written payload cannot be committed")
        self._written = _no_callback
        self._publisher.resume()

    def _update_pause(self) -> None:
        pause = self._waiting > _MAX_WAITING
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._publisher.pause()
            else:
                self._publisher.resume()
