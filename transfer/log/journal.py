"""The journal: records in segments, written and synced together for all who wait. It knows no topics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from transfer.log.record import HEADER_SIZE, Flag, Kind, encode, state_body
from transfer.log.retention import Retention, removable
from transfer.log.segment import Segment, full_disk_told, sync_folder
from transports.errors import Again, Closed, ForkedError, InternalError, LogFull

#: a segment's blobs take so many times the bytes of its records at most, unless one alone takes more
_BLOBS = 16
_IN_DOUBT = "what was not committed is in doubt until the log is opened again"
#: state as a new segment repeats it
Snapshot = Callable[[], Iterable[tuple[bytes, bytes]]]
#: what was discarded is given back; is called with the lock
Relieve = Callable[[], None]
#: the offset before which all groups of a topic have acknowledged; None: it has no group
Acknowledged = Callable[[int], int | None]


class Journal:
    """Appends records and makes them durable. Thread-safe by `lock`: `with journal:` holds it, for the
    methods that say so.

    segments: the oldest first. kept_at: (first sequence of a segment, position): records before it are kept.
    sequence: of the next record. mode: see `Log`.
    """

    def __init__(
        self,
        folder: Path,
        segments: list[Segment],
        sequence: int,
        *,
        mode: str,
        segment_bytes: int,
        retention: Retention,
        clock: Callable[[], int],
        snapshot: Snapshot,
        acknowledged: Acknowledged,
        removed: Callable[[int], None],
        relieve: Relieve,
    ) -> None:
        self.lock = threading.Condition(threading.Lock())
        self.segments = segments
        self.sequence = sequence
        self.retention = retention
        self._folder = folder
        self._mode = mode
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._snapshot = snapshot
        self._acknowledged = acknowledged
        self._removed = removed
        self._relieve = relieve
        self._process = os.getpid()
        self._written = self._synced = sequence
        self._chunks: list[bytes] = []
        self._waiting = 0  # bytes in them
        self._blobs: set[Segment] = set()  # segments with blobs that may not be synced
        self._busy = False  # somebody writes or syncs, without the lock
        self._failed: BaseException | None = None
        self._closed = False
        with self.lock:
            if not segments:
                self._begin(self._create(0, limited=False))
        self.kept_at = self._place()

    def __enter__(self) -> Journal:
        """Takes the lock of a journal that can be used. Raises Closed, InternalError, ForkedError."""
        if os.getpid() != self._process:
            raise ForkedError("a log is used in a child of fork", hint="open it after fork, in one process")
        self.lock.acquire()
        if self._closed or self._failed is not None:
            self.lock.release()
            self._check()
        return self

    def __exit__(self, *exc: object) -> None:
        self.lock.release()

    def _check(self) -> None:
        if self._closed:
            raise Closed("the log is closed")
        if self._failed is not None:
            text = f"writing the log failed before: {self._failed}"
            raise InternalError(text, hint=_IN_DOUBT) from self._failed

    # -- appending, with the lock ------------------------------------------------------------------------

    def make_room(self, size: int, *, limited: bool = True) -> None:
        """A record with a body of `size` bytes fits now. May wait, and let others in. Raises LogFull.

        limited: by retention, too. State is not: who cannot acknowledge could never make room.
        """
        size += HEADER_SIZE
        while (segment := self.segments[-1]).end + self._waiting + size > segment.capacity:
            if self._busy:
                self.lock.wait()
                self._check()
            else:
                self._roll(size, limited)

    def append(
        self, kind: int, flags: int, topic: int, offset: int, time_ns: int, body: memoryview | bytes
    ) -> tuple[int, Segment, int]:
        """Appends a record for which there is room: its sequence, segment, position."""
        segment, sequence = self.segments[-1], self.sequence
        position = segment.end + self._waiting
        chunk = encode(kind, flags, topic, sequence, offset, time_ns, sequence - self._synced, body)
        self._chunks.append(chunk)
        self._waiting += len(chunk)
        self.sequence += 1
        return sequence, segment, position

    def reserve_blob(self, nbytes: int) -> tuple[Segment, int]:
        """Room for a blob in the last segment: where. It stays until `unpin`. Raises LogFull.

        May wait, and let others in.
        """
        most = _BLOBS * self._segment_bytes
        while (segment := self.segments[-1]).blob_end and segment.blob_end + nbytes > most:
            if self._busy:
                self.lock.wait()
                self._check()
            else:
                self._roll(0, limited=True)
        self._limit(segment.blob_growth(nbytes))
        with full_disk_told():
            position = segment.reserve_blob(nbytes)
        segment.pins += 1
        return segment, position

    def blob_written(self, segment: Segment) -> None:
        """A blob lies where it was reserved; the next record may name it."""
        self._blobs.add(segment)

    def unpin(self, segment: Segment) -> None:
        """A record names the blob, or nobody will. Takes the lock."""
        with self.lock:
            segment.pins -= 1
            self.lock.notify_all()

    @property
    def disk_bytes(self) -> int:
        """What all segments take on the disk, room that is reserved too."""
        return sum(segment.disk_bytes for segment in self.segments)

    def _place(self) -> tuple[int, int]:
        segment = self.segments[-1]
        return segment.first, segment.end + self._waiting

    def _limit(self, nbytes: int) -> None:
        """Raises LogFull if retention does not allow so many bytes more."""
        limit = self.retention.bytes
        if limit is None or not nbytes or self.disk_bytes + nbytes <= limit:
            return
        self.collect(nbytes)
        if self.disk_bytes + nbytes > limit:
            raise LogFull(
                f"the log takes {self.disk_bytes} bytes of {limit}, and {nbytes} more are wanted",
                hint="consumers have to acknowledge, or the retention's bytes have to be more",
            )

    # -- segments, with the lock -------------------------------------------------------------------------

    def _roll(self, size: int, limited: bool) -> None:
        """The next segment begins, with room for `size` bytes. After LogFull all is as it was."""
        new = self._create(size, limited)
        try:
            self._flush(sync=True)
        except BaseException:
            new.remove()
            raise
        old = self.segments[-1]
        self._begin(new)
        with full_disk_told():
            old.seal()
            old.trim_blobs()
        self.collect(0)

    def _create(self, size: int, limited: bool) -> Segment:
        state = sum(HEADER_SIZE + len(state_body(key, value)) for key, value in self._snapshot())
        capacity = max(self._segment_bytes, state + HEADER_SIZE + size)
        if limited:
            self._limit(capacity)
        with full_disk_told():
            return Segment.create(self._folder, self.sequence, capacity)

    def _begin(self, segment: Segment) -> None:
        """Its first records are all state and the word that it is whole; when they are synced it counts."""
        sequence, chunks = segment.first, []
        for key, value in self._snapshot():
            body = state_body(key, value)
            chunks.append(encode(Kind.STATE, Flag.SNAPSHOT, 0, sequence, 0, 0, 0, body))
            sequence += 1
        chunks.append(encode(Kind.OPENED, 0, 0, sequence, 0, 0, 0, b""))
        data = b"".join(chunks)
        try:
            with full_disk_told():
                segment.write(0, data)
                segment.sync()
                sync_folder(self._folder)
        except BaseException as error:
            self._failed = error
            raise
        segment.end = len(data)
        self.segments.append(segment)
        self.sequence = self._written = self._synced = sequence + 1
        self.kept_at = self._place()

    def collect(self, wanted: int) -> int:
        """Gives back what was discarded, removes the segments that retention lets go; how many.

        wanted: bytes that should be free.
        """
        self._relieve()
        now = self._clock()
        count = removable(self.segments, self.retention, now, self._acknowledged, wanted=wanted)
        for segment in self.segments[:count]:
            self._removed(segment.first)
            segment.remove()
        del self.segments[:count]
        if count:
            with full_disk_told():
                sync_folder(self._folder)
        return count

    # -- committing --------------------------------------------------------------------------------------

    @property
    def synced(self) -> int:
        """All records before this one are synced."""
        return self._synced

    def commit(self, sequence: int | None, timeout: float, *, synced: bool = False) -> None:
        """See `Log.commit`. synced: in mode "never" too. Takes the lock."""
        deadline = time.monotonic() + timeout
        with self:
            until = self.sequence if sequence is None else sequence + 1
            while (self._synced if synced else self._kept) < until:
                sync = self._mode == "always" or (synced and self._mode == "never")
                if (sync or self._written < until) and not self._busy:
                    self._flush_beside(sync=sync)
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Again(f"record {until - 1} was not kept within {timeout} s")
                self.lock.wait(left)
                self._check()

    def sync_every(self, seconds: float) -> None:
        """The thread of mode "interval": syncs until the journal is closed. Takes the lock."""
        with self.lock:
            while True:
                due = time.monotonic() + seconds
                while (left := due - time.monotonic()) > 0 or self._busy:
                    self.lock.wait(max(left, 0.001))
                    if self._closed or self._failed is not None:
                        return
                if self._synced < self.sequence:
                    try:
                        self._flush_beside(sync=True)
                    except InternalError:
                        return  # whoever waits is told
                    self._relieve()

    @property
    def _kept(self) -> int:
        return self._written if self._mode == "never" else self._synced

    def _flush_beside(self, *, sync: bool) -> None:
        """Writes what was appended, and syncs; others may append meanwhile."""
        self._busy = True
        try:
            self._flush(sync=sync, beside=True)
        finally:
            self._busy = False
            self.lock.notify_all()

    def _flush(self, *, sync: bool, beside: bool = False) -> None:
        """Writes what was appended, and syncs. beside: without the lock."""
        chunks, self._chunks = self._chunks, []
        segment, until = self.segments[-1], self.sequence
        # What is appended meanwhile has its place behind this.
        position, segment.end, self._waiting = segment.end, segment.end + self._waiting, 0
        place = self._place()
        blobs: set[Segment] = set()
        if sync:
            blobs, self._blobs = self._blobs, blobs
        if beside:
            self.lock.release()
        failed: BaseException | None = None
        try:
            segment.write(position, b"".join(chunks))
            for one in blobs:
                one.sync_blobs()
            if sync:
                segment.sync()
        except OSError as error:
            failed = error
            raise InternalError(f"writing the log failed: {error}", hint=_IN_DOUBT) from error
        except BaseException as error:
            failed = error
            raise
        finally:
            if beside:
                self.lock.acquire()
            if failed is not None:
                self._failed = failed
            else:
                self._written = until
                self._synced = until if sync else self._synced
                if sync or self._mode == "never":
                    self.kept_at = place

    def close(self) -> None:
        """Keeps what was appended, and ends. Idempotent; takes the lock. Raises InternalError."""
        if os.getpid() != self._process:
            return  # the parent's
        with self.lock:
            while self._busy or any(segment.pins for segment in self.segments):
                self.lock.wait()
            if self._closed:
                return
            try:
                if self._failed is None:
                    self._flush(sync=True)
                    self._relieve()
            finally:
                self._closed = True
                self.lock.notify_all()
                for segment in self.segments:
                    segment.close()
