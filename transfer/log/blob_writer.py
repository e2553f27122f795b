"""A blob that arrives in pieces, written to the log's file as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from transfer.log.appender import Appender, flat
from transfer.log.checks import parts_of
from transfer.log.disk import disk_errors
from transfer.log.holes import Hole
from transfer.transports.core import crc32c
from transfer.transports.errors import Closed, UsageError


class BlobWriter:
    """A message whose blob is not there yet; `Log.blob` makes it. Thread-safe; pieces have an order, so one
    thread writes them. It ends with `commit` or `abandon`; leaving `with` and closing the log abandon it.

    nbytes: of the whole blob. written: how many there are. arriving: room is reserved as they arrive, and
    there may be fewer in the end. Its segment stays until it ends.
    """

    def __init__(
        self,
        appender: Appender,
        topic: str,
        nbytes: int,
        ended: Callable[[BlobWriter], None],
        *,
        arriving: bool = False,
    ) -> None:
        self.topic = topic
        self.nbytes = nbytes
        self.written = 0
        self._appender = appender
        self._ended = ended
        self._crc = 0
        self._lock = threading.Lock()
        self._open = True
        self._arriving = arriving
        take = appender.place if arriving else appender.reserve
        self._segment, self._position = take(topic, nbytes)
        self._reserved = 0 if arriving else nbytes

    def write(self, data: Any) -> int:
        """Writes the next piece from where it lies, a flat buffer or a list or tuple of them: `written`.

        Raises UsageError (more than `nbytes`), Closed, LogFull (no room for the piece of a blob that
        arrives; it can be tried again), InternalError (the disk; the same).
        """
        parts = parts_of(data)
        size = sum(map(len, parts))
        with self._lock:
            self._check()
            if self.written + size > self.nbytes:
                raise UsageError(f"{self.written + size} bytes of a blob of {self.nbytes}")
            if self.written + size > self._reserved:
                self._reserve(self.written + size - self._reserved)
            if size:
                with disk_errors():
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
        with disk_errors():
            self._segment.sync_blobs_beside()

    def commit(self, body: Any = b"") -> tuple[int, int]:
        """Appends the message: (sequence, offset in its topic). `Log.commit(sequence)` waits for it.

        body: a flat buffer, copied; it may tell what is known only now. Raises UsageError if bytes are
        missing and it was not said to be arriving, Closed, LogFull (it can be tried again), InternalError.
        """
        small = flat(body)
        with self._lock:
            self._check()
            if self.written != self.nbytes and not self._arriving:
                raise UsageError(f"{self.written} bytes of a blob of {self.nbytes} were written")
            blob = (self._position, self.written, self._crc)
            appended = self._appender.name_blob(self.topic, small, self._segment, blob)
            self._end(self.written)
            return appended

    def abandon(self) -> None:
        """There will be no message; the room is given back as soon as nobody views it. Idempotent."""
        if not self._appender.journal.is_ours:
            return  # a forked child's copy
        with self._lock:
            if self._open:
                self._end(0)

    def _reserve(self, needed: int) -> None:
        with self._appender.journal as journal:
            place = self._segment, self._position
            self._reserved = journal.reserve_arriving(*place, self._reserved, needed, self.nbytes)

    def _end(self, kept: int) -> None:
        """The blob has so many bytes; the room of the others is given back."""
        self._open = False
        segment, position, reserved = self._segment, self._position, self._reserved
        if self._arriving:
            with self._appender.journal.lock:
                reserved = segment.end_blob(position, reserved, self.nbytes, kept)
        if kept < reserved:
            self._appender.give_back(Hole(segment, position + kept, reserved - kept))
        self._appender.journal.unpin(segment)
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
