"""A segment of the log: a file of records, and a file of large payloads (blobs)."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from transfer.log.disk import disk_errors, reserve, sync_folder
from transfer.log.index import OffsetRun, Uses
from transfer.log.private import open_file
from transfer.log.segment_files import BLOBS, REMOVED, finish_removals, path_of
from transfer.transports import core
from transfer.transports.errors import LogFull

#: positions have 32 bits
LARGEST = (1 << 32) - 1
#: blobs begin at multiples of this, so that numbers in them are aligned
_ALIGNMENT = 64
#: most bytes that a blob file grows by beyond the needed ones
_STEP = 64 << 20
#: first reservation for a blob that arrives in pieces
_FIRST_STEP = 256 << 10
#: only whole pages are freed
PAGE = 4096
#: bytes of a blob file that share a mapping
_STRETCH = 32 << 20
#: the unit of `st_blocks`
_BLOCK = 512
_READ = mmap.PROT_READ
#: most buffers of one system call
_PARTS = os.sysconf("SC_IOV_MAX")


class Segment:
    """One segment. Not thread-safe, except for `write_blob` and reads.

    first: its first record's sequence. end: bytes of its records. newest: time of its newest message. last:
    where its last record begins. runs: its messages. uses: the blobs that they name. carried: number of
    messages that compaction copied into it. blob_ends: the offset after the last message whose blob is in
    this segment, by topic. pins: number of callers that need it to stay. removed: its files are removed.
    blob_end: where the last blob ends, which may still arrive. freed: bytes of holes in the blob file.
    index_bytes: size of its index file. scarce: it has room for state only, since the disk is full.
    """

    #: whether its files stay unchanged
    read_only = False

    def __init__(self, folder: Path, first: int, fd: int, capacity: int) -> None:
        self.folder = folder
        self.first = first
        self.capacity = capacity
        self.end = 0
        self.newest = 0
        self.last = 0
        self.runs: list[OffsetRun] = []
        self.uses: Uses = {}
        self.carried = 0
        self.blob_ends: dict[int, int] = {}
        self.index_bytes = 0
        self.scarce = False
        self.removed = False
        self.closed = False
        self.pins = 0
        self.blob_end = 0
        self._fd = fd
        # An empty file, which a crash can leave, cannot be mapped.
        self._map = (
            mmap.mmap(fd, capacity, flags=mmap.MAP_SHARED, prot=_READ) if capacity else mmap.mmap(-1, 1)
        )
        self.memory = memoryview(self._map)
        self._blob_fd = -1
        self._blob_room = 0  # the file's bytes up to here are reserved, or the place of an arriving blob
        self._unreserved = 0  # of them, bytes of such places without reserved room
        self._sync_failed: OSError | None = None
        self.freed = 0
        #: where the viewed blobs begin; entries of ended views remove themselves
        self._views: dict[weakref.ref[core.Region], int] = {}
        #: mappings of the blob file, by where they begin, while they have views
        self._mappings: weakref.WeakValueDictionary[int, core.Mapping] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, first: int, capacity: int, *, scarce: bool = False) -> Segment:
        """Makes a new segment and reserves its disk space. Raises LogFull, and leaves no file then."""
        path = path_of(folder, first)
        fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            reserve(fd, 0, capacity)
            segment = cls(folder, first, fd, capacity)
            segment.scarce = scarce
            return segment
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, folder: Path, first: int) -> Segment:
        """Opens an existing segment; the caller scans it and sets `end`."""
        fd = open_file(path_of(folder, first), cls._flags())
        try:
            segment = cls(folder, first, fd, os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise
        try:
            segment._open_blobs()
        except BaseException:
            segment.close()
            raise
        return segment

    @classmethod
    def _flags(cls) -> int:
        return os.O_RDONLY if cls.read_only else os.O_RDWR

    @property
    def path(self) -> Path:
        return path_of(self.folder, self.first)

    @property
    def disk_bytes(self) -> int:
        """The disk space of its files."""
        blobs = self._blob_room - self._unreserved - self.freed
        return self.capacity + blobs + self.index_bytes

    @property
    def blob_bytes(self) -> int:
        """Bytes of its blobs that have arrived."""
        return max(0, self.blob_end - self._unreserved)

    @property
    def blob_size(self) -> int:
        """Size of its blob file; 0: there is none."""
        return os.fstat(self._blob_fd).st_size if self._blob_fd >= 0 else 0

    @property
    def ends(self) -> dict[int, int]:
        """The offset after the last message with its record or blob in this segment, by topic."""
        ends = dict(self.blob_ends)
        for run in self.runs:
            if run.end > ends.get(run.topic, 0):
                ends[run.topic] = run.end
        return ends

    def has_blobs_of(self, topic: int) -> bool:
        """Whether messages of the topic in this segment have blobs, in any segment."""
        return any(number == topic for _, number in self.uses)

    # -- records ---------------------------------------------------------------------------------------

    def write(self, position: int, data: Any) -> None:
        """Writes records, for which there must be room. Raises OSError."""
        _write(self._fd, position, memoryview(data))

    @property
    def is_sealed(self) -> bool:
        """Whether the file ends with its records; the last segment has free room after them."""
        return self.capacity == self.end

    def find(self, needle: bytes, start: int) -> int:
        """Returns where these bytes occur next, or -1."""
        return self._map.find(needle, start)

    def cut(self, end: int) -> None:
        """Zeroes all bytes after `end`. The file stays longer than that of a sealed segment."""
        capacity = max(self.capacity, end + 1)
        _write(self._fd, end, memoryview(b"\0"))
        os.ftruncate(self._fd, end + 1)
        reserve(self._fd, end + 1, capacity - end - 1)
        os.fsync(self._fd)
        self.end = end

    def seal(self) -> None:
        """Ends the segment: no record is appended any more. Frees unused room."""
        os.ftruncate(self._fd, self.end)
        self.capacity = self.end
        # No byte after the file's end may be read. The mapping has a separate descriptor.
        self.memory = self.memory[: self.end]
        os.close(self._fd)
        self._fd = -1

    def trim_blobs(self) -> None:
        """Frees the room that is reserved for further blobs."""
        if self._blob_fd >= 0:
            os.ftruncate(self._blob_fd, min(self.blob_end, self.blob_size))  # see cut_blobs
            self._blob_room = self.blob_end

    def cut_blobs(self, end: int) -> None:
        """Frees the bytes after `end`, which a crash left of arriving blobs."""
        self.blob_end = end
        if self._blob_fd >= 0:
            # A file that is too short is damaged: the next start must detect that too.
            os.ftruncate(self._blob_fd, min(end, self.blob_size))
            self._find_room()

    def sync(self) -> None:
        """Syncs the written records. Raises OSError."""
        os.fdatasync(self._fd)

    def sync_blobs(self) -> None:
        """Syncs the written blobs. Raises OSError."""
        with self._lock:  # the segment must not be closed meanwhile
            if self._blob_fd >= 0:
                self._sync_blobs(self._blob_fd)

    def sync_blobs_unlocked(self) -> None:
        """Syncs the written blobs without the lock, for long syncs.
        Uses a second descriptor. Raises OSError."""
        with self._lock:
            fd = os.dup(self._blob_fd) if self._blob_fd >= 0 else -1
        if fd >= 0:
            try:
                self._sync_blobs(fd)
            finally:
                os.close(fd)

    def _sync_blobs(self, fd: int) -> None:
        """Syncs the blob file; fails for ever after a failed sync.
        The system reports a failure only once, and then regards the unwritten pages as written."""
        if self._sync_failed is not None:
            raise OSError(self._sync_failed.errno, f"an earlier sync failed: {self._sync_failed.strerror}")
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._sync_failed = error
            raise

    def note_blob(self, topic: int, offset: int, time: int) -> None:
        """Notes a message with its blob in this segment; its record may be in another."""
        self.blob_ends[topic] = max(self.blob_ends.get(topic, 0), offset + 1)
        self.newest = max(self.newest, time)

    # -- blobs -----------------------------------------------------------------------------------------

    def blob_growth(self, nbytes: int) -> int:
        """Returns by how many bytes the blob file must grow for one more blob."""
        needed = aligned(self.blob_end) + nbytes - self._blob_room
        return max(needed, min(self.capacity, _STEP)) if needed > 0 else 0

    def reserve_blob(self, nbytes: int, *, ahead: bool) -> int:
        """Reserves room for a blob; returns its position. ahead: also for later blobs. Raises LogFull."""
        position = aligned(self.blob_end)
        self._make_blobs()
        needed = max(0, position + nbytes - self._blob_room)
        more = self.blob_growth(nbytes) if ahead else needed
        try:
            self._reserve(self._blob_room, more)
        except LogFull:
            more = needed
            self._reserve(self._blob_room, more)
        self._blob_room += more
        self.blob_end = position + nbytes
        return position

    def place_blob(self, nbytes: int) -> int:
        """Returns a place for a blob of at most `nbytes` that arrives in pieces: its position.
        The place is a hole in the file: `reserve_arriving` reserves room, `end_blob` ends it."""
        position = -(-self.blob_end // PAGE) * PAGE
        self._make_blobs()
        with self._lock:
            if self._blob_room > position:  # reserved room would remain in the place
                os.ftruncate(self._blob_fd, position)
        self._blob_room = self.blob_end = position + nbytes
        self._unreserved += nbytes
        return position

    def reserve_arriving(self, position: int, reserved: int, needed: int, nbytes: int, most: int) -> int:
        """Reserves room for the next `needed` bytes of a blob of `nbytes`, whose first `reserved` have room.

        Doubles the reserved room, if possible, by at most `most` bytes. Returns the bytes that have room now.
        Raises LogFull.
        """
        wanted = max(needed, min(max(reserved, _FIRST_STEP), most, _STEP))
        for more in (min(-(-wanted // PAGE) * PAGE, nbytes - reserved), needed):
            try:
                self._reserve(position + reserved, more)
            except LogFull:
                if more == needed:
                    raise
            else:
                self._unreserved -= more
                return reserved + more
        raise AssertionError("unreachable")

    def end_blob(self, position: int, reserved: int, nbytes: int, kept: int) -> int:
        """Ends an arriving blob with `kept` bytes of its place's `nbytes`, of which `reserved` have room.
        Returns how many bytes still have room. If no blob follows it, the rest of the place is free."""
        if not self.blob_end == self._blob_room == position + nbytes:
            return reserved
        left = kept or reserved  # an abandoned blob may have views
        self._unreserved -= nbytes - reserved
        self._blob_room = self.blob_end = position + left
        with self._lock:
            if left < reserved and self._blob_fd >= 0:
                with suppress(OSError):
                    os.ftruncate(self._blob_fd, self.blob_end)
        return left

    def _make_blobs(self) -> None:
        if self._blob_fd < 0:
            path = path_of(self.folder, self.first, BLOBS)
            self._blob_fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            sync_folder(self.folder)

    def _reserve(self, position: int, nbytes: int) -> None:
        with self._lock:  # `punching` measures the file's disk space
            reserve(self._blob_fd, position, nbytes)

    def write_blob(self, position: int, parts: Sequence[memoryview]) -> None:
        """Writes the parts of a blob into reserved room, without a copy. Raises OSError."""
        if len(parts) == 1:
            _write(self._blob_fd, position, parts[0])
        else:
            _write_parts(self._blob_fd, position, parts)

    def blob(self, position: int, nbytes: int, *, of: int | None = None) -> memoryview | None:
        """Returns a read-only view of a blob, which outlives the segment; None: the file is truncated.
        of: where the blob begins, if this is a part of it."""
        if not nbytes:
            return memoryview(b"")
        with self._lock:  # the descriptor must not be closed and reused meanwhile
            if (file_size := self.blob_size) < position + nbytes:
                return None
            begin, mapping = self._mapped(position, nbytes, file_size)
            bytes_of_it = memoryview(mapping)[position - begin : position - begin + nbytes]
            region = core.Region(bytes_of_it, readonly=True)
            # The last view may end in any thread at any time: its callback takes no lock.
            self._views[weakref.ref(region, self._views.pop)] = position if of is None else of
        return memoryview(region).toreadonly()

    def _mapped(self, position: int, nbytes: int, file_size: int) -> tuple[int, core.Mapping]:
        """Returns a mapping with these bytes of the blob file, and where it begins.

        All views of a stretch share one mapping: the system allows some 65,000 per process, and a slow reader
        may hold many views.
        """
        begin = position // _STRETCH * _STRETCH
        end = min(begin + 2 * _STRETCH, file_size)  # a blob may reach into the next stretch
        if position + nbytes > end:
            begin = position // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            end = position + nbytes
        mapping = self._mappings.get(begin)
        if mapping is None or begin + len(mapping) < position + nbytes:  # the file has grown since
            mapping = core.Mapping(self._blob_fd, end - begin, offset=begin, readonly=True)
            self._mappings[begin] = mapping
        return begin, mapping

    @contextmanager
    def punching(self) -> Iterator[tuple[int, set[int]]]:
        """Allows the block to punch holes into the blob file; no new views are made meanwhile.

        Yields the file's descriptor (-1: it is closed, or there is none), and where the viewed blobs begin.
        """
        with self._lock:
            before = self._blob_blocks()
            try:
                yield self._blob_fd, set(self._views.copy().values())
            finally:  # a part of the blobs may have been a hole before
                self.freed += max(0, before - self._blob_blocks())

    def _blob_blocks(self) -> int:
        """Returns the disk space of the blob file."""
        return os.fstat(self._blob_fd).st_blocks * _BLOCK if self._blob_fd >= 0 else 0

    def _open_blobs(self) -> None:
        try:
            self._blob_fd = open_file(path_of(self.folder, self.first, BLOBS), self._flags())
        except FileNotFoundError:
            return
        self._find_room()

    def _find_room(self) -> None:
        found = os.fstat(self._blob_fd)
        self._blob_room = found.st_size
        pages = -(-found.st_size // PAGE) * PAGE
        self._unreserved = max(0, pages - found.st_blocks * _BLOCK)

    # -- the end ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Removes a segment that was never begun; it has only one file."""
        self.removed = True
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Closes the files; views stay valid. Idempotent."""
        with self._lock:
            for fd in (self._fd, self._blob_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._blob_fd = -1
            self.closed = True
        # The mapping, which has a separate descriptor, ends with its last view.
        self.memory = memoryview(b"")
        self._map = mmap.mmap(-1, 1)


def aligned(position: int) -> int:
    """Returns where the next blob begins."""
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _write(fd: int, position: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written


def _write_parts(fd: int, position: int, parts: Sequence[memoryview]) -> None:
    """Writes several non-empty buffers one after the other, without joining them."""
    left = deque(parts)
    while left:
        written = os.pwritev(fd, list(islice(left, _PARTS)), position)
        position += written
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]


def remove(folder: Path, segments: Sequence[Segment]) -> None:
    """Removes the segments' files; views stay valid. Raises LogFull, InternalError.
    After a crash at any point `finish_removals` removes the rest."""
    if not segments:
        return
    with disk_errors():
        for segment in segments:
            segment.removed = True
            with suppress(FileNotFoundError):
                segment.path.replace(path_of(folder, segment.first, REMOVED))
            segment.close()
        sync_folder(folder)
        finish_removals(folder)
