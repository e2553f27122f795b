"""Writes a blob that arrives in pieces into the log's file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from transfer.log.appender import Appender, flat
from transfer.log.checks import parts_of
from transfer.log.disk import disk_errors
from transfer.log.holes import Hole
from transfer.transports.core import crc32c
from transfer.transports.errors import Closed, UsageError


class BlobWriter:
    """A message whose blob is not complete yet; `Log.blob` makes it.

    Thread-safe; one thread writes the pieces. It ends with `commit` or `abandon`; leaving `with` and closing
    the log abandon it. Until then its segment stays. nbytes: of the whole blob. written: the bytes written so
    far. arriving: room is reserved as bytes arrive, and the blob may end up shorter.
    """

    def __init__(
        self,
        appender: Appender,
        topic: str,
        nbytes: int,
        on_end: Callable[[BlobWriter], None],
        *,
        arriving: bool = False,
    ) -> None:
        self.topic = topic
        self.nbytes = nbytes
        self.written = 0
        self._appender = appender
        self._on_end = on_end
        self._crc = 0
        self._lock = threading.Lock()
        self._open = True
        self._arriving = arriving
        take = appender.place if arriving else appender.reserve
        self._segment, self._position = take(topic, nbytes)
        self._reserved = 0 if arriving else nbytes

    def write(self, data: Any) -> int:
        """Writes the next piece without a copy: a flat buffer, or a list or tuple of them. Returns `written`.

        Raises UsageError (more than `nbytes`), Closed, LogFull (no room for the piece of an arriving blob),
        InternalError (the disk). After the last two the call can be repeated.
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
        """Returns a read-only view of written bytes, which stays valid when the writer ends.
        While it exists the blob's room is not freed. Raises UsageError, Closed."""
        if not 0 <= begin <= end <= self.written:
            raise UsageError(f"bytes {begin} to {end} of a blob of which {self.written} are written")
        view = self._segment.blob(self._position + begin, end - begin, of=self._position)
        if view is None:
            raise Closed("the log is closed, or the message is removed")
        return view

    def sync(self) -> None:
        """Syncs the bytes written so far, which shortens the log's next sync. Raises InternalError.
        For another thread than the one that writes."""
        with disk_errors():
            self._segment.sync_blobs_unlocked()

    def commit(self, body: Any = b"") -> tuple[int, int]:
        """Appends the message; returns (sequence, offset). `Log.commit(sequence)` waits until it is kept.

        body: a flat buffer, copied. Raises UsageError if bytes are missing and the blob is not `arriving`,
        Closed, LogFull (the call can be repeated), InternalError.
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
        """Ends without a message; frees the room as soon as it has no views. Idempotent."""
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
        """Ends the blob after `kept` bytes; frees the room of the others."""
        self._open = False
        segment, position, reserved = self._segment, self._position, self._reserved
        if self._arriving:
            with self._appender.journal.lock:
                reserved = segment.end_blob(position, reserved, self.nbytes, kept)
        if kept < reserved:
            self._appender.give_back(Hole(segment, position + kept, reserved - kept))
        self._appender.journal.unpin(segment)
        self._on_end(self)

    def _check(self) -> None:
        if not self._open:
            raise Closed("the blob was committed or abandoned")

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abandon()
