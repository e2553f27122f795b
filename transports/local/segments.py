"""The sender's shared memory: segments of equal slots, reused when the receiver is done with them.

    segment    state page (one byte for each slot) | slot 0 | slot 1 | ...

The sender sets a slot's byte when it fills it, the receiver clears it when the last view of the
payload dies: no message, no system call. A peer that clears one too early harms itself only.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from transports.errors import InternalError
from transports.local.memory import make_memfd

PAGE = mmap.PAGESIZE
#: a segment of small slots has about so many bytes
SEGMENT = 4 << 20
MOST_SLOTS = 64
FREE, USED = 0, 1


def slot_size(nbytes: int) -> int:
    """The size of a slot for so many bytes: whole pages, at most a quarter more than asked for."""
    step = max(PAGE, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


class Segment:
    """One piece of shared memory, mapped here. It lives as long as a view of it."""

    def __init__(self, core: Any, number: int, size: int) -> None:
        self.number = number
        self.slot_size = size
        self.slots = max(1, min(MOST_SLOTS, SEGMENT // size))
        self.size = PAGE + self.slots * size
        self.fd = make_memfd(self.size)
        self.memory = memoryview(core.Mapping(self.fd, self.size))

    def close_fd(self) -> None:
        """The mapping stays: only the peer needed the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one payload."""

    segment: Segment
    index: int

    @property
    def offset(self) -> int:
        return PAGE + self.index * self.segment.slot_size

    @property
    def is_free(self) -> bool:
        return self.segment.memory[self.index] == FREE

    def view(self, nbytes: int) -> memoryview:
        return self.segment.memory[self.offset : self.offset + nbytes]

    def mark(self, state: int) -> None:
        self.segment.memory[self.index] = state


class Arena:
    """The segments of one connection. Thread-safe.

    limit: bytes of all segments together; a payload larger than a third of it is still given
    three slots, so that one may be filled while others are in use.
    """

    def __init__(self, core: Any, limit: int) -> None:
        self._core = core
        self.limit = limit
        self.total = 0
        self._lock = threading.Lock()
        self._numbers = 0
        #: slot size -> slots in the order in which they were used
        self._slots: dict[int, deque[Slot]] = {}
        self._segments: dict[int, Segment] = {}
        #: numbers of segments that were given up; the peer is to be told
        self.dropped: list[int] = []

    def reserve(self, nbytes: int) -> tuple[Slot, bool] | None:
        """(a slot, marked as used; whether its segment is new), or None when all are in use."""
        size = slot_size(nbytes)
        with self._lock:
            slots = self._slots.setdefault(size, deque())
            # The slot used longest ago is the likeliest to be free; a receiver may keep some for long.
            for _ in range(len(slots)):
                slot = slots[0]
                slots.rotate(-1)
                if slot.is_free:
                    slot.mark(USED)
                    return slot, False
            return self._grow(size, slots)

    def _grow(self, size: int, slots: deque[Slot]) -> tuple[Slot, bool] | None:
        limit = max(self.limit, 3 * (size + PAGE))
        planned = PAGE + max(1, min(MOST_SLOTS, SEGMENT // size)) * size
        if self.total + planned > limit:
            self._trim(self.total + planned - limit, size)
        if self.total + planned > limit:
            return None
        self._numbers += 1
        try:
            segment = Segment(self._core, self._numbers, size)
        except (InternalError, OSError):
            return None  # the connection takes the payload, as it would without shared memory
        self.total += segment.size
        self._segments[segment.number] = segment
        new = [Slot(segment, index) for index in range(segment.slots)]
        new[0].mark(USED)
        slots.extend((*new[1:], new[0]))
        return new[0], True

    def _trim(self, wanted: int, keep: int) -> None:
        """Gives up segments of other sizes that are wholly free."""
        for size in [size for size in self._slots if size != keep]:
            for segment in {slot.segment.number: slot.segment for slot in self._slots[size]}.values():
                if wanted > 0 and not any(segment.memory[: segment.slots]):
                    self._slots[size] = deque(s for s in self._slots[size] if s.segment is not segment)
                    del self._segments[segment.number]
                    self.dropped.append(segment.number)
                    self.total -= segment.size
                    wanted -= segment.size

    def slot(self, number: int, offset: int) -> Slot:
        """The slot that a reference of ours names."""
        segment = self._segments[number]
        return Slot(segment, (offset - PAGE) // segment.slot_size)

    def close(self) -> None:
        """Forgets all; what is mapped lives as long as views of it."""
        with self._lock:
            for segment in self._segments.values():
                segment.close_fd()
            self._segments.clear()
            self._slots.clear()
            self.total = 0
