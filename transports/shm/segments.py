"""The sender's shared memory: segments of equal slots, reused when the receiver has released them.

    segment    state page (one byte for each slot) | slot 0 | slot 1 | ...

The sender sets a slot's byte when it fills it; the receiver clears it when the last view of the payload is
deleted: no message, no system call. A peer that clears one too early harms only itself.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from transfer.transports.core.wire import REFERENCE
from transfer.transports.errors import InternalError
from transfer.transports.shm.memory import MemfdOwner, make_memfd

PAGE = mmap.PAGESIZE
#: the approximate size of a segment of small slots
SEGMENT = 4 << 20
MOST_SLOTS = 64
#: slots that can be made for a payload of any size up to the arena's limit
FEWEST = 2
#: bytes of the segments of all connections of one context
CONTEXT = 2 << 30
#: the kind of a reference to a slot
IN_SLOT = 0
#: sizes of payloads whose slot's size is remembered
_MOST_SIZES = 1024
#: seconds until a full context checks again which memory its other connections can spare
_LOOK_AGAIN = 0.1


def slot_size(nbytes: int) -> int:
    """The slot size for `nbytes`: whole pages, at most a quarter more than requested."""
    step = max(PAGE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


def slots_of(size: int) -> int:
    """The number of slots of this size in one segment."""
    return max(1, min(MOST_SLOTS, SEGMENT // size))


class SharedSegment(MemfdOwner):
    """One piece of shared memory, mapped here. It lives as long as a view of it. Raises
    InternalError, OSError."""

    def __init__(self, core: Any, number: int, slot: int) -> None:
        self.number = number
        self.slot = slot
        self.size = PAGE + slots_of(slot) * slot
        #: the peer has its descriptor
        self.announced = False
        self.fd = make_memfd(self.size)
        self.slots = core.Slots(core.Mapping(self.fd, self.size), PAGE, slot, slots_of(slot))


class Budget:
    """The limit for the segments of all connections of a context. Thread-safe."""

    def __init__(self, limit: int = CONTEXT) -> None:
        self.limit = limit
        self.total = 0
        self._arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
        # Held for sums only, and reentrant as the lock of an arena.
        self._lock = threading.RLock()
        self._again = 0.0

    def add(self, arena: Arena) -> None:
        with self._lock:
            self._arenas.add(arena)

    def take(self, nbytes: int, arena: Arena) -> bool:
        """Counts these bytes for this arena; if needed, others give up memory that they do not use."""
        if self._fits(nbytes):
            return True
        now = time.monotonic()
        if now < self._again:
            return False
        with self._lock:
            others = [other for other in self._arenas if other is not arena]
        for other in others:
            other.spare(self.total + nbytes - self.limit)
            if self._fits(nbytes):
                return True
        self._again = now + _LOOK_AGAIN
        return False

    def _fits(self, nbytes: int) -> bool:
        with self._lock:
            fits = self.total + nbytes <= self.limit
            self.total += nbytes if fits else 0
        return fits

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.total -= nbytes


class Arena:
    """The segments of one connection. Thread-safe.

    limit: bytes of all segments, and of the largest payload; FEWEST slots may be made of any size up to it,
    so that one is filled while another is read. budget: shared with other arenas. spared: called when
    segments were given up, which the peer has to learn. announce: tells the peer of a segment; False: it
    cannot now.
    """

    def __init__(
        self,
        core: Any,
        limit: int,
        budget: Budget | None = None,
        spared: Callable[[], None] = lambda: None,
        announce: Callable[[SharedSegment], bool] = lambda segment: True,
    ) -> None:
        self.limit = limit
        self.total = 0
        self._core = core
        self._budget = budget or Budget()
        self._budget.add(self)
        self._spared = spared
        self._announce = announce
        self._slot_sizes: dict[int, int] = {}
        self._used = self._closed = False
        # Reentrant: the collector may end an object that closes the arena inside any statement.
        self._lock = threading.RLock()
        self._numbers = 0
        #: slot size -> segments, oldest first
        self._sizes: dict[int, list[SharedSegment]] = {}
        self._segments: dict[int, SharedSegment] = {}
        #: numbers of announced segments that were given up; to be reported to the peer
        self.dropped: list[int] = []

    def copy(self, data: Any, nbytes: int) -> bytes | str:
        """The reference to a copy of these bytes for the peer, or why there is none: see `take`; "unread",
        the peer has not read of earlier segments.

        One function, since a loop of sends passes here.
        """
        size = self._slot_sizes.get(nbytes) or self._slot_size(nbytes)
        with self._lock:
            for segment in self._sizes.get(size, ()):
                index = segment.slots.take()
                if index >= 0:
                    self._used = True
                    break
            else:
                found = self.take(nbytes)
                if isinstance(found, str):
                    return found
                segment, index = found
        try:
            segment.slots.fill(index, data)
            ready = segment.announced or self._announce(segment)
        except BaseException:
            segment.slots.free(index)
            raise
        if not ready:
            segment.slots.free(index)
            return "unread"
        return REFERENCE.pack(segment.number, IN_SLOT, PAGE + index * size, nbytes)

    def _slot_size(self, nbytes: int) -> int:
        if len(self._slot_sizes) >= _MOST_SIZES:
            self._slot_sizes.clear()
        size = self._slot_sizes[nbytes] = slot_size(nbytes)
        return size

    def take(self, nbytes: int) -> tuple[SharedSegment, int] | str:
        """(a segment, the index of a slot in it, which is taken), or why there is none: "full",
        "crowded", "too_large", "no_memory", "closed".

        It takes the first free slot and not the least recently used one: the first is likelier to be
        in the processor's cache.
        """
        if nbytes > self.limit:
            return "too_large"
        size = slot_size(nbytes)
        with self._lock:
            if self._closed:
                return "closed"
            self._used = True
            for segment in self._sizes.get(size, ()):
                index = segment.slots.take()
                if index >= 0:
                    return segment, index
            return self._grow(size)

    def _grow(self, size: int) -> tuple[SharedSegment, int] | str:
        planned = PAGE + slots_of(size) * size
        limit = max(self.limit, FEWEST * planned)
        if self.total + planned > limit:
            self._trim(self.total + planned - limit, size)
        if self.total + planned > limit:
            return "full"
        if not self._budget.take(planned, self):
            self._trim(planned, size)
            if not self._budget.take(planned, self):
                return "crowded"
        self._numbers += 1
        try:
            segment = SharedSegment(self._core, self._numbers, size)
        except (InternalError, OSError):
            self._budget.give_back(planned)
            return "no_memory"  # the connection carries the payload, as without shared memory
        except BaseException:
            self._budget.give_back(planned)
            raise
        if self._closed:  # by a finalizer that ran in between
            segment.close_fd()
            self._budget.give_back(planned)
            return "closed"
        index = segment.slots.take()
        self.total += segment.size
        self._segments[segment.number] = segment
        self._sizes.setdefault(size, []).append(segment)
        return segment, index

    def spare(self, wanted: int) -> None:
        """Gives up `wanted` bytes that are free, for another connection, unless the arena is busy."""
        if self._lock.acquire(blocking=False):
            try:
                self._trim(wanted)
            finally:
                self._lock.release()
            if self.dropped:
                self._spared()

    def rest(self) -> None:
        """Gives up free segments, if no slot was taken since the last call."""
        used, self._used = self._used, False
        if not used:
            self.spare(self.total)

    def _trim(self, wanted: int, keep: int = 0) -> None:
        """Gives up segments of other sizes that are entirely free."""
        for size in [size for size in self._sizes if size != keep]:
            for segment in [segment for segment in self._sizes[size] if segment.slots.idle]:
                if wanted <= 0:
                    return
                self._sizes[size].remove(segment)
                del self._segments[segment.number]
                segment.close_fd()
                if segment.announced:
                    self.dropped.append(segment.number)
                self._forget(segment.size)
                wanted -= segment.size

    def _forget(self, nbytes: int) -> None:
        self.total -= nbytes
        self._budget.give_back(nbytes)

    def find(self, number: int, offset: int) -> tuple[Any, int] | None:
        """(slots, index) of a reference of this arena. None: the segment is gone, since the peer released
        a slot before it was even sent."""
        segment = self._segments.get(number)
        return None if segment is None else (segment.slots, (offset - PAGE) // segment.slot)

    def close(self) -> None:
        """Drops all segments; mapped memory lives as long as its views."""
        with self._lock:
            self._closed = True
            for segment in self._segments.values():
                segment.close_fd()
            self._segments.clear()
            self._sizes.clear()
            self._forget(self.total)
