"""A segment of the log: a file of records, and a file of large payloads (blobs) beside it."""

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
from transfer.log.index import Run, Uses
from transfer.log.private import open_file
from transfer.log.segment_files import BLOBS, REMOVED, finish_removals, path_of
from transfer.transports import core
from transfer.transports.errors import LogFull

#: positions are kept in 32 bits
LARGEST = (1 << 32) - 1
#: blobs begin at such bytes, so that numbers in them are aligned
ALIGNMENT = 64
#: bytes that a blob file grows by at most, beyond what is needed
_STEP = 64 << 20
#: room that is reserved at first for a blob that arrives in pieces
_FIRST_STEP = 256 << 10
#: only whole ones of these are given back
PAGE = 4096
#: bytes of a file of blobs that share a mapping
_STRETCH = 32 << 20
#: the unit of `st_blocks`
_BLOCK = 512
_READ = mmap.PROT_READ
#: buffers that one call of the system writes at most
_PARTS = os.sysconf("SC_IOV_MAX")


class Segment:
    """One segment. first: its first record's sequence. end: bytes of its records. Not thread-safe, but for
    `write_blob` and what reads. `reserve` keeps the disk's room before anything is written.

    newest: time of its newest message. last: where its last record begins. runs: its messages. uses: the
    blobs that they name. carried: how many of them lay elsewhere before. blob_ends: the offset behind the
    last message whose blob lies here, by topic. pins: who needs it to stay. removed: its files are gone.
    blob_end: where the last blob ends, though it may still arrive. given_back: bytes of holes in the file of
    blobs. index_bytes: of its index file. scarce: it has room for state alone, since the disk is full.
    """

    #: whether its files stay as they are
    read_only = False

    def __init__(self, folder: Path, first: int, fd: int, capacity: int) -> None:
        self.folder = folder
        self.first = first
        self.capacity = capacity
        self.end = 0
        self.newest = 0
        self.last = 0
        self.runs: list[Run] = []
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
        # A file of no bytes, which a crash can leave, cannot be mapped.
        self._map = (
            mmap.mmap(fd, capacity, flags=mmap.MAP_SHARED, prot=_READ) if capacity else mmap.mmap(-1, 1)
        )
        self.memory = memoryview(self._map)
        self._blob_fd = -1
        self._blob_room = 0  # the file's bytes up to here are reserved, or a place for a blob that arrives
        self._unreserved = 0  # of them, bytes of such places for which no room is reserved
        self._sync_failed: OSError | None = None
        self.given_back = 0
        #: where the blobs begin that are viewed; views that have ended leave by themselves
        self._views: dict[weakref.ref[core.Region], int] = {}
        #: of the file of blobs, by where they begin, as long as there are views in them
        self._mappings: weakref.WeakValueDictionary[int, core.Mapping] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, first: int, capacity: int, *, scarce: bool = False) -> Segment:
        """A new one whose room on the disk is reserved. Raises LogFull; nothing is left of it then."""
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
        """One that is there; `end` is for whoever scans it to say."""
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
        """What it takes on the disk."""
        blobs = self._blob_room - self._unreserved - self.given_back
        return self.capacity + blobs + self.index_bytes

    @property
    def blob_bytes(self) -> int:
        """Bytes of its blobs, as far as they have arrived."""
        return max(0, self.blob_end - self._unreserved)

    @property
    def blob_size(self) -> int:
        """Bytes of the file of its blobs; 0: there is none."""
        return os.fstat(self._blob_fd).st_size if self._blob_fd >= 0 else 0

    @property
    def ends(self) -> dict[int, int]:
        """The offset behind the last message that needs it, by topic: its record lies here, or its blob."""
        ends = dict(self.blob_ends)
        for run in self.runs:
            if run.end > ends.get(run.topic, 0):
                ends[run.topic] = run.end
        return ends

    def has_blobs_of(self, topic: int) -> bool:
        """True if messages of the topic here have blobs, wherever those lie."""
        return any(number == topic for _, number in self.uses)

    # -- records ---------------------------------------------------------------------------------------

    def write(self, position: int, data: Any) -> None:
        """Writes records, for which there must be room. Raises OSError."""
        _write(self._fd, position, memoryview(data))

    @property
    def is_sealed(self) -> bool:
        """True if the file ends with its records: those of the last segment have room behind them."""
        return self.capacity == self.end

    def find(self, needle: bytes, start: int) -> int:
        """Where these bytes are next, or -1."""
        return self._map.find(needle, start)

    def cut(self, end: int) -> None:
        """What lies behind `end` is zeros again. The file is never as short as that of a sealed segment."""
        capacity = max(self.capacity, end + 1)
        _write(self._fd, end, memoryview(b"\0"))
        os.ftruncate(self._fd, end + 1)
        reserve(self._fd, end + 1, capacity - end - 1)
        os.fsync(self._fd)
        self.end = end

    def seal(self) -> None:
        """No record is appended any more: room that was not used is given back."""
        os.ftruncate(self._fd, self.end)
        self.capacity = self.end
        # Nothing behind the file's end may be looked at. The mapping has a descriptor of its own.
        self.memory = self.memory[: self.end]
        os.close(self._fd)
        self._fd = -1

    def trim_blobs(self) -> None:
        """No room is reserved for blobs any more: what was not used is given back."""
        if self._blob_fd >= 0:
            os.ftruncate(self._blob_fd, min(self.blob_end, self.blob_size))  # see cut_blobs
            self._blob_room = self.blob_end

    def cut_blobs(self, end: int) -> None:
        """No blob lies behind `end`: what a crash left there of those that were arriving is given back."""
        self.blob_end = end
        if self._blob_fd >= 0:
            # A file that is too short is damaged: the next start must see it too.
            os.ftruncate(self._blob_fd, min(end, self.blob_size))
            self._find_room()

    def sync(self) -> None:
        """The records that were written are on the disk. Raises OSError."""
        os.fdatasync(self._fd)

    def sync_blobs(self) -> None:
        """The blobs that were written are on the disk. Raises OSError."""
        with self._lock:  # who removes the segment meanwhile waits
            if self._blob_fd >= 0:
                self._sync_blobs(self._blob_fd)

    def sync_blobs_beside(self) -> None:
        """The same, for one who takes long: nobody waits. Takes a descriptor more. Raises OSError."""
        with self._lock:
            fd = os.dup(self._blob_fd) if self._blob_fd >= 0 else -1
        if fd >= 0:
            try:
                self._sync_blobs(fd)
            finally:
                os.close(fd)

    def _sync_blobs(self, fd: int) -> None:
        """The system tells of a failure once, and takes what was not written for written: no later sync of
        this file counts."""
        if self._sync_failed is not None:
            raise OSError(self._sync_failed.errno, f"a sync failed before: {self._sync_failed.strerror}")
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._sync_failed = error
            raise

    def lend(self, topic: int, offset: int, time: int) -> None:
        """A message whose record may lie elsewhere has its blob here."""
        self.blob_ends[topic] = max(self.blob_ends.get(topic, 0), offset + 1)
        self.newest = max(self.newest, time)

    # -- blobs -----------------------------------------------------------------------------------------

    def blob_growth(self, nbytes: int) -> int:
        """Bytes that the blob file has to grow by for one more blob."""
        needed = aligned(self.blob_end) + nbytes - self._blob_room
        return max(needed, min(self.capacity, _STEP)) if needed > 0 else 0

    def reserve_blob(self, nbytes: int, *, ahead: bool) -> int:
        """Room for a blob; where it begins. ahead: for some that follow it too. Raises LogFull."""
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
        """A place for a blob of at most so many bytes that arrives in pieces: where it begins.

        It is a hole of the file: `reserve_arriving` keeps room, `end_blob` ends it."""
        position = -(-self.blob_end // PAGE) * PAGE
        self._make_blobs()
        with self._lock:
            if self._blob_room > position:  # what was reserved ahead would stay in the place
                os.ftruncate(self._blob_fd, position)
        self._blob_room = self.blob_end = position + nbytes
        self._unreserved += nbytes
        return position

    def reserve_arriving(self, position: int, reserved: int, needed: int, nbytes: int, most: int) -> int:
        """Room for the next `needed` bytes of a blob of `nbytes` whose first `reserved` have theirs, and for
        as many as it has already, at most `most` ahead: how many have room now. Raises LogFull."""
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
        """A blob that arrived keeps `kept` bytes of the `nbytes` of its place, of which `reserved` have room.

        How many still have; the place of the others is the next blob's, if there is none behind it."""
        if not self.blob_end == self._blob_room == position + nbytes:
            return reserved
        left = kept or reserved  # somebody may have a view of what is not kept
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
        with self._lock:  # who makes holes meanwhile counts what the file takes
            reserve(self._blob_fd, position, nbytes)

    def write_blob(self, position: int, parts: Sequence[memoryview]) -> None:
        """Writes a blob, its parts one behind the other, into room that was reserved, straight from the
        caller's memory. Raises OSError."""
        if len(parts) == 1:
            _write(self._blob_fd, position, parts[0])
        else:
            _write_parts(self._blob_fd, position, parts)

    def blob(self, position: int, nbytes: int, *, of: int | None = None) -> memoryview | None:
        """A view of a blob, read-only, which outlives the segment; None: it is cut short.

        of: where the blob begins, if this is a part of it.
        """
        if not nbytes:
            return memoryview(b"")
        with self._lock:  # its number must not become another file's meanwhile
            if (file_size := self.blob_size) < position + nbytes:
                return None
            begin, mapping = self._mapped(position, nbytes, file_size)
            bytes_of_it = memoryview(mapping)[position - begin : position - begin + nbytes]
            region = core.Region(bytes_of_it, readonly=True)
            # The last view's end comes in any thread and at any time: no lock is taken for it.
            self._views[weakref.ref(region, self._views.pop)] = position if of is None else of
        return memoryview(region).toreadonly()

    def _mapped(self, position: int, nbytes: int, file_size: int) -> tuple[int, core.Mapping]:
        """A mapping with these bytes of the file of blobs, and where it begins. All views of a stretch have
        one: the system allows some 65,000 to a process, and one who does not read may hold many views."""
        begin = position // _STRETCH * _STRETCH
        end = min(begin + 2 * _STRETCH, file_size)  # what reaches into the next stretch is in it
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
        """For who makes holes in the blobs: the file's number (-1: it is closed, or there is none), and where
        the blobs begin that somebody has a view of. Nobody gets a new view meanwhile.
        """
        with self._lock:
            before = self._blob_blocks()
            try:
                yield self._blob_fd, set(self._views.copy().values())
            finally:  # a part of them may have been a hole before
                self.given_back += max(0, before - self._blob_blocks())

    def _blob_blocks(self) -> int:
        """Bytes that the file of blobs takes on the disk."""
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
        """It was never begun: it has one file, and that goes."""
        self.removed = True
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Views of it stay good. Idempotent."""
        with self._lock:
            for fd in (self._fd, self._blob_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._blob_fd = -1
            self.closed = True
        # The mapping, which has a descriptor of its own, ends with the last view of it.
        self.memory = memoryview(b"")
        self._map = mmap.mmap(-1, 1)


def aligned(position: int) -> int:
    """Where the next blob begins."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def _write(fd: int, position: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written


def _write_parts(fd: int, position: int, parts: Sequence[memoryview]) -> None:
    """Several buffers of bytes, none of them empty, one behind the other and without joining them."""
    left = deque(parts)
    while left:
        written = os.pwritev(fd, list(islice(left, _PARTS)), position)
        position += written
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = left[0][written:]


def remove(folder: Path, segments: Sequence[Segment]) -> None:
    """Their files are gone; views of them stay good. Wherever a crash comes, what is left of them is known as
    such (`finish_removals`). Raises LogFull, InternalError."""
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
