"""The journal: writes and syncs records in segments for all waiting callers at once. It knows no topics."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from transfer.log.contents import contents_of, store
from transfer.log.disk import disk_errors, sync_folder
from transfer.log.record import HEADER_SIZE, Opening, encode, encode_messages, opening
from transfer.log.retention import Retention, removable
from transfer.log.room import Room
from transfer.log.segment import LARGEST, Segment, remove
from transfer.log.segment_limits import SegmentLimits
from transfer.transports.errors import Again, Closed, ForkedError, InDoubt, InternalError, LogFull

#: most bytes of a segment's blob file, with the places of arriving blobs: file systems have limits
_MAX_PLACES = 1 << 40
#: longest single wait in seconds: the system limits timeouts
_STEP = 60.0
_IN_DOUBT = "records that were not committed are in doubt until the log is opened again"
#: returns all state, with which a new segment begins
Snapshot = Callable[[], Iterable[tuple[bytes, bytes]]]
#: frees the room of discarded blobs; called with the lock
FreeDiscarded = Callable[[], None]
#: returns the offset before which all groups of a topic have acknowledged; None: it has no group
Acknowledged = Callable[[int], int | None]


class Journal:
    """Appends records and makes them durable. Thread-safe by `lock`; `with journal:` holds it.

    segments: the oldest first. kept_at: (first sequence of a segment, position): records before it are kept.
    sequence: of the next record. room: the limits for messages. free_discarded: frees the room of discarded
    blobs; needs the lock. mode: see `Log`.
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
        removed: Callable[[Segment], None],
        free_discarded: FreeDiscarded,
    ) -> None:
        self.lock = threading.Condition(threading.Lock())
        self.segments = segments
        self.sequence = sequence
        self.room = Room(folder, retention, segment_bytes)
        self._folder = folder
        self._mode = mode
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._snapshot = snapshot
        self._acknowledged = acknowledged
        self._removed = removed
        self.free_discarded = free_discarded
        self._process = os.getpid()
        self._written = self._synced = sequence
        self._chunks: list[bytes] = []
        self._waiting = 0  # bytes in them
        self._blobs: set[Segment] = set()  # segments with blobs that may not be synced
        self._busy = False  # a thread writes or syncs without the lock
        self._failed: BaseException | None = None
        self._closed = False
        with self.lock:
            if not segments:
                self._begin(*self._create(0, limited=False))
        self.kept_at = self._place()

    @property
    def _limits(self) -> SegmentLimits:
        return SegmentLimits(self._segment_bytes, self.room.retention.bytes, LARGEST)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it; False in a forked child."""
        return os.getpid() == self._process

    def __enter__(self) -> Journal:
        """Takes the lock. Raises Closed, InternalError (the journal has failed), ForkedError."""
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
            text = f"an earlier write to the log failed: {self._failed}"
            raise InternalError(text, hint=_IN_DOUBT) from self._failed

    def _in_doubt(self) -> InDoubt:
        """Returns the error for callers that wait for appended records."""
        text = f"appended records may or may not be kept: the log cannot be written: {self._failed}"
        return InDoubt(text, hint=_IN_DOUBT)

    # -- appending, with the lock ------------------------------------------------------------------------

    def make_room(self, size: int, *, limited: bool = True) -> None:
        """Makes room for a record with a body of `size` bytes. May release the lock and wait. Raises LogFull.

        limited: retention applies, and the last room is left for state: without it consumers could not
        acknowledge, and so never free room.
        """
        while not self.fits(size, limited=limited):
            self.next_segment(limited=limited, size=size + HEADER_SIZE)

    def fits(self, size: int, *, limited: bool = True) -> bool:
        """Whether there is room for a record with a body of `size` bytes."""
        segment = self.segments[-1]
        if limited and segment.scarce:
            return False
        return segment.end + self._waiting + HEADER_SIZE + size < segment.capacity

    def append_all(
        self, messages: Iterable[tuple[int, int, bytes]], time_ns: int
    ) -> tuple[int, Segment, list[int]]:
        """Appends messages (topic, offset, body) without blobs, for which there is room.
        Returns the first one's sequence, the segment, and their positions."""
        segment, sequence = self.segments[-1], self.sequence
        begin = segment.end + self._waiting
        chunks, positions, end = encode_messages(messages, sequence, time_ns, sequence - self._synced, begin)
        self._chunks += chunks
        if positions:
            segment.last = positions[-1]
            self._waiting += end - begin
            self.sequence += len(positions)
        return sequence, segment, positions

    def append(
        self, kind: int, flags: int, topic: int, offset: int, time_ns: int, body: bytes
    ) -> tuple[int, Segment, int]:
        """Appends a record for which there is room; returns its sequence, segment and position."""
        segment, sequence = self.segments[-1], self.sequence
        position = segment.end + self._waiting
        self._chunks += encode(kind, flags, topic, sequence, offset, time_ns, sequence - self._synced, body)
        self._waiting += HEADER_SIZE + len(body)
        self.sequence += 1
        segment.last = position
        return sequence, segment, position

    def reserve_blob(self, nbytes: int, *, limited: bool = True) -> tuple[Segment, int]:
        """Reserves room for a blob in the last segment; returns its place. Pins the segment. Raises LogFull.
        limited: retention applies. May release the lock and wait."""
        most = self._limits.blobs
        while (segment := self.segments[-1]).blob_end and segment.blob_bytes + nbytes > most:
            self.next_segment(limited=limited)
        growth = segment.blob_growth(nbytes)
        ahead = not limited or self.room.is_on_disk(growth)
        if limited and growth:
            self._limit(growth)
            if not ahead:
                self.room.check_disk(nbytes)
        with disk_errors():
            position = segment.reserve_blob(nbytes, ahead=ahead)
        segment.pins += 1
        return segment, position

    def place_blob(self, nbytes: int) -> tuple[Segment, int]:
        """Returns a place for an arriving blob, without reserving disk space. Otherwise as `reserve_blob`."""
        most = self._limits.blobs
        while (segment := self.segments[-1]).blob_end and (
            segment.blob_bytes > most or segment.blob_end + nbytes > _MAX_PLACES
        ):
            self.next_segment(limited=True)
        with disk_errors():
            position = segment.place_blob(nbytes)
        segment.pins += 1
        return segment, position

    def reserve_arriving(
        self, segment: Segment, position: int, reserved: int, needed: int, nbytes: int
    ) -> int:
        """Reserves room for the next bytes of an arriving blob, as `Segment.reserve_arriving`.
        Raises LogFull."""
        self._limit(needed)
        self.room.check_disk(needed)
        most = self._segment_bytes if self.room.is_on_disk(self._segment_bytes) else 0
        with disk_errors():
            return segment.reserve_arriving(position, reserved, needed, nbytes, most)

    def fit_last(self) -> None:
        """Ends the last segment if an earlier, larger limit gave it too much room, and frees that."""
        segment = self.segments[-1]
        if self._limits.too_large(segment.capacity - segment.end):
            self._roll(0, limited=False)

    def next_segment(self, *, limited: bool, size: int = 0) -> None:
        """Begins the next segment; only waits if another thread writes or syncs now. Raises LogFull."""
        if self._busy:
            self.lock.wait(_STEP)
            self._check()
        else:
            self._roll(size, limited)

    def blob_written(self, segment: Segment) -> None:
        """Notes that a segment has a written blob, which must be synced before a record that names it."""
        self._blobs.add(segment)

    def unpin(self, segment: Segment) -> None:
        """Unpins a segment: a record names the blob, or the blob is abandoned. Takes the lock."""
        with self.lock:
            segment.pins -= 1
            self.lock.notify_all()

    @property
    def disk_bytes(self) -> int:
        """The disk space of all segments, reserved room included."""
        return sum(segment.disk_bytes for segment in self.segments)

    def is_kept(self, place: tuple[int, int]) -> bool:
        """Whether the record at this place (segment, position) is kept."""
        return place < self.kept_at

    def segment(self, first: int) -> Segment | None:
        """Returns the segment that begins with this record; None: there is none."""
        at = bisect_left(self.segments, first, key=lambda segment: segment.first)
        found = self.segments[at] if at < len(self.segments) else None
        return found if found is not None and found.first == first else None

    def _place(self) -> tuple[int, int]:
        segment = self.segments[-1]
        return segment.first, segment.end + self._waiting

    def _limit(self, nbytes: int) -> None:
        """Raises LogFull if retention does not allow `nbytes` more bytes."""
        if not self.room.is_within_retention(nbytes, self.disk_bytes):
            self.collect(nbytes)
            self.room.check_retention(nbytes, self.disk_bytes)

    # -- segments, with the lock -------------------------------------------------------------------------

    def _roll(self, size: int, limited: bool) -> None:
        """Begins the next segment, with room for `size` bytes. After LogFull nothing has changed."""
        new, beginning = self._create(size, limited)
        try:
            self._flush(sync=True)
        except BaseException:
            new.abandon()
            raise
        old = self.segments[-1]
        self._begin(new, beginning)
        with disk_errors():
            old.seal()
            old.trim_blobs()
        self._index(old, new.first)
        self.collect(0)

    def _index(self, segment: Segment, following: int) -> None:
        """Writes the segment's index; a start works without it."""
        with suppress(OSError):
            segment.index_bytes = store(self._folder, contents_of(segment, following))

    def _create(self, size: int, limited: bool) -> tuple[Segment, Opening]:
        """Makes a segment; returns it with the records that it begins with."""
        beginning = opening(self._snapshot(), self.sequence)
        wanted = self._limits.records(len(beginning.data), size)
        if limited:
            self._limit(wanted)
            self.room.check_disk(wanted)
        with disk_errors():
            try:
                return Segment.create(self._folder, self.sequence, wanted), beginning
            except LogFull:
                least = self._limits.scarce(len(beginning.data), size)
                if limited or least >= wanted:
                    raise
                return Segment.create(self._folder, self.sequence, least, scarce=True), beginning

    def _begin(self, segment: Segment, beginning: Opening) -> None:
        """Writes and syncs a segment's first records: all state, then OPENED. Then it is part of the log."""
        segment.last = beginning.last
        try:
            with disk_errors():
                segment.write(0, beginning.data)
                segment.sync()
                sync_folder(self._folder)
        except BaseException as error:
            self._failed = error
            segment.close()
            raise
        segment.end = len(beginning.data)
        self.segments.append(segment)
        self.sequence = self._written = self._synced = beginning.sequence + 1
        self.kept_at = self._place()

    def collect(self, wanted: int) -> int:
        """Frees discarded blobs, and removes the segments that retention selects; returns their number.
        wanted: bytes that should be free."""
        self.free_discarded()
        now = self._clock()
        count = removable(self.segments, self.room.retention, now, self._acknowledged, wanted=wanted)
        self.remove(count)
        return count

    def remove(self, count: int) -> None:
        """Removes the `count` oldest segments."""
        gone = self.segments[:count]
        del self.segments[:count]
        for segment in gone:
            self._removed(segment)
        remove(self._folder, gone)

    # -- committing --------------------------------------------------------------------------------------

    @property
    def written(self) -> int:
        """The sequence before which all records are written."""
        return self._written

    @property
    def synced(self) -> int:
        """The sequence before which all records are synced."""
        return self._synced

    def commit(self, sequence: int | None, timeout: float, *, synced: bool = False) -> None:
        """See `Log.commit`. synced: waits for a sync in mode "never" too. Takes the lock."""
        deadline = time.monotonic() + timeout
        with self:
            until = self.sequence if sequence is None else sequence + 1
            while (self._synced if synced else self._kept) < until:
                sync = self._mode == "always" or (synced and self._mode == "never")
                if (sync or self._written < until) and not self._busy:
                    try:
                        self._flush_unlocked(sync=sync)
                    except InternalError as error:
                        raise self._in_doubt() from error
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Again(f"record {until - 1} was not committed within {timeout} s")
                self.lock.wait(min(left, _STEP))
                if self._failed is not None:
                    raise self._in_doubt() from self._failed
                self._check()

    def sync_every(self, seconds: float) -> None:
        """Syncs periodically until the journal is closed; runs on the thread of mode "interval"."""
        with self.lock:
            while True:
                due = time.monotonic() + seconds
                while (left := due - time.monotonic()) > 0 or self._busy:
                    self.lock.wait(min(max(left, 0.001), _STEP))
                    if self._closed or self._failed is not None:
                        return
                if self._synced < self.sequence:
                    try:
                        self._flush_unlocked(sync=True)
                    except InternalError:
                        return  # callers of `commit` get the error
                    self.free_discarded()

    @property
    def _kept(self) -> int:
        return self._written if self._mode == "never" else self._synced

    def _flush_unlocked(self, *, sync: bool) -> None:
        """Writes the appended records, and syncs; other threads may append meanwhile."""
        self._busy = True
        try:
            self._flush(sync=sync, unlocked=True)
        finally:
            self._busy = False
            self.lock.notify_all()

    def _flush(self, *, sync: bool, unlocked: bool = False) -> None:
        """Writes the appended records, and syncs. unlocked: releases the lock meanwhile."""
        chunks, self._chunks = self._chunks, []
        segment, until = self.segments[-1], self.sequence
        # Records that are appended meanwhile are placed after these.
        position, segment.end, self._waiting = segment.end, segment.end + self._waiting, 0
        place = self._place()
        blobs: set[Segment] = set()
        if sync:
            blobs, self._blobs = self._blobs, blobs
        if unlocked:
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
            if unlocked:
                self.lock.acquire()
            if failed is not None:
                self._failed = failed
            else:
                self._written = until
                self._synced = until if sync else self._synced
                if sync or self._mode == "never":
                    self.kept_at = place

    def close(self) -> None:
        """Syncs all appended records, and closes the files.
        Idempotent; takes the lock. Raises InternalError."""
        if not self.is_ours:
            return
        with self.lock:
            while self._busy or any(segment.pins for segment in self.segments):
                self.lock.wait(_STEP)
            if self._closed:
                return
            try:
                if self._failed is None:
                    self._flush(sync=True)
                    self.free_discarded()
                    self._index(self.segments[-1], self.sequence)
            finally:
                self._closed = True
                self.lock.notify_all()
                for segment in self.segments:
                    segment.close()
