"""A blob that arrives in pieces, written to the log's file as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from transfer.log.appending import Appender, flat
from transfer.log.checks import parts_of
from transfer.log.holes import Hole
from transfer.log.segment import full_disk_told
from transports.core import crc32c
from transports.errors import Closed, UsageError


class BlobWriter:
    """A message whose blob is not there yet; `Log.blob` makes it. Thread-safe; pieces have an order, so one
    thread writes them. It ends with `commit` or `abandon`; leaving `with` and closing the log abandon it.

    nbytes: of the whole blob. written: how many there are. Its segment stays until it ends.
    """

    def __init__(
        self, appender: Appender, topic: str, nbytes: int, ended: Callable[[BlobWriter], None]
    ) -> None:
        self.topic = topic
        self.nbytes = nbytes
        self.written = 0
        self._appender = appender
        self._ended = ended
        self._crc = 0
        self._lock = threading.Lock()
        self._open = True
        self._segment, self._position = appender.reserve(topic, nbytes)

    def write(self, data: Any) -> int:
        """Writes the next piece from where it lies, a flat buffer or a list or tuple of them: `written`.

        Raises UsageError (more than `nbytes`), Closed, InternalError (the disk; it can be tried again).
        """
        parts = parts_of(data)
        size = sum(map(len, parts))
        with self._lock:
            self._check()
            if self.written + size > self.nbytes:
                raise UsageError(f"{self.written + size} bytes of a blob of {self.nbytes}")
            if size:
                with full_disk_told():
                    self._segment.write_blob(self._position + self.written, parts)
                for part in parts:
                    self._crc = crc32c(part, self._crc)
                self.written += size
            return self.written

    def view(self, begin: int, end: int) -> memoryview:
        """These bytes, which were written; read-only, without a copy. It stays good when the writer ends, and
        while it is there the blob's room is not given back. Raises UsageError, Closed.
        """
        if not 0 <= begin <= end <= self.written:
            raise UsageError(f"bytes {begin} to {end} of a blob of which {self.written} are there")
        view = self._segment.blob(self._position + begin, end - begin, of=self._position)
        if view is None:
            raise Closed("the log is closed, or the message is removed")
        return view

    def sync(self) -> None:
        """What was written so far is on the disk, so that the log's next sync takes less time; for another
        thread than the one that writes. Raises InternalError."""
        with full_disk_told():
            self._segment.sync_blobs_beside()

    def commit(self, body: Any = b"") -> tuple[int, int]:
        """Appends the message: (sequence, offset in its topic). `Log.commit(sequence)` waits for it.

        body: a flat buffer, copied; it may tell what is known only now. Raises UsageError if bytes are
        missing, Closed, LogFull (it can be tried again), InternalError.
        """
        small = flat(body)
        with self._lock:
            self._check()
            if self.written != self.nbytes:
                raise UsageError(f"{self.written} bytes of a blob of {self.nbytes} were written")
            blob = (self._position, self.nbytes, self._crc)
            appended = self._appender.name_blob(self.topic, small, self._segment, blob)
            self._end()
            return appended

    def abandon(self) -> None:
        """There will be no message; the room is given back as soon as nobody views it. Idempotent."""
        if not self._appender.journal.is_ours:
            return  # a forked child's copy
        with self._lock:
            if self._open:
                self._appender.give_back(Hole(self._segment, self._position, self.nbytes))
                self._end()

    def _end(self) -> None:
        self._open = False
        self._appender.journal.unpin(self._segment)
        self._ended(self)

    def _check(self) -> None:
        if not self._open:
            raise Closed("the blob was committed or abandoned")

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()
