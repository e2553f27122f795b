"""Blocks of memory that devices read or write, cut out of slabs that are prepared once and used again."""

from __future__ import annotations

import mmap
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from transfer.transports.core.buffers import size_class
from transfer.transports.errors import Closed

#: smaller blocks share a slab of this size; a larger block is a slab
SLAB = 4 << 20
_SMALLEST = 4096
#: bytes of slabs beyond which free large ones are closed, when a larger block is needed
KEPT = 256 << 20


class Slab(Protocol):
    """Prepared memory: registered with a network card, or on a GPU. memory: what views of it keep."""

    address: int
    size: int
    memory: Any
    region: Any

    def close(self) -> None:
        """No block of it is given out any more. Memory that is in use stays until its users let it go."""


class MemoryBlock:
    """A piece of a slab. `address` and `nbytes` are of the requested size. is_done: whether what used it
    last is done; None: it is. returned: when it was free again, of time.monotonic()."""

    __slots__ = ("address", "is_done", "nbytes", "offset", "returned", "size", "slab")

    def __init__(self, slab: Slab, offset: int, size: int) -> None:
        self.slab = slab
        self.offset = offset
        self.size = size
        self.nbytes = size
        self.address = slab.address + offset
        self.is_done: Callable[[], bool] | None = None
        self.returned = 0.0

    @property
    def view(self) -> memoryview:
        """Of memory of the host."""
        return memoryview(self.slab.memory)[self.offset : self.offset + self.nbytes]


class SlabPool:
    """Blocks in size classes. Thread-safe.

    make: prepares a slab of a size. `registered`: bytes of all slabs. begin_wait: makes what says whether the
    use is done with which a block was given back. Blocks may return in any thread, even inside `take`, when
    the collector ends the last view of one.
    """

    def __init__(
        self,
        make: Callable[[int], Slab],
        *,
        kept: int = KEPT,
        begin_wait: Callable[[Any], Callable[[], bool]] | None = None,
    ) -> None:
        self.registered = 0
        self.in_use = 0
        self.closed = False
        self._make = make
        self._kept = kept
        self._begin_wait = begin_wait
        self._lock = threading.Lock()
        self._free: dict[int, list[MemoryBlock]] = {}
        self._slabs: set[Slab] = set()
        self._returned: dict[MemoryBlock, Any] = {}

    def take(self, nbytes: int) -> MemoryBlock:
        """Returns `nbytes`, not cleared. Raises Closed, and what `make` raises."""
        large = nbytes > SLAB // 2
        if nbytes > 1 << 30:
            size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        elif large:
            size = size_class(nbytes)
        else:  # few classes, since each starts a slab
            size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            if self.closed:
                raise Closed("the memory of this context is closed")
            self._collect()
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else self._new(size, large)
            block.nbytes = nbytes
            self.in_use += size
            return block

    def give_back(self, block: MemoryBlock) -> None:
        """The block's memory may be used again. Any thread; never waits."""
        self._returned[block] = None

    def returning(self, block: MemoryBlock) -> Callable[..., None]:
        """What gives the block back when it is called: by the destructor of a Region or a GpuPayload."""
        from transfer.transports.core.native.pool import BlockReturn

        made: Callable[..., None] = BlockReturn(self, self._returned, block)
        return made

    @property
    def waits(self) -> bool:
        """Blocks were given back whose last use may not be done."""
        return bool(self._returned)

    def drop_free(self, before: float) -> bool:
        """Closes slabs of which all blocks have been free since then. Returns whether any slab is left."""
        with self._lock:
            if self.closed:
                return False
            self._collect()
            dropped = self._unused(before)
            for slab in dropped:
                self._without(slab)
            for blocks in self._free.values() if dropped else ():
                blocks[:] = [one for one in blocks if one.slab not in dropped]
            left = bool(self._slabs)
        for slab in dropped:  # without the lock: to free memory of a GPU waits for its work
            slab.close()
        return left

    def close(self) -> None:
        """Closes all slabs. Memory that is still viewed stays. Idempotent."""
        with self._lock:
            self.closed = True
            self._free.clear()
            self._returned.clear()
            for slab in self._slabs:
                slab.close()
            self._slabs.clear()
            self.registered = 0

    # -- under the lock

    def _collect(self) -> None:
        for block, used in list(self._returned.items()):
            if used is not None and self._begin_wait is not None and block.is_done is None:
                block.is_done = self._begin_wait(used)
            if block.is_done is not None and not block.is_done():
                continue
            self._returned.pop(block, None)
            block.is_done, block.returned = None, time.monotonic()
            self.in_use -= block.size
            self._free.setdefault(block.size, []).append(block)

    def _new(self, size: int, large: bool) -> MemoryBlock:
        if large:
            self._trim(size)
            return MemoryBlock(self._slab(size), 0, size)
        slab = self._slab(SLAB)
        blocks = [MemoryBlock(slab, at, size) for at in range(0, SLAB - size + 1, size)]
        self._free.setdefault(size, []).extend(blocks[1:])
        return blocks[0]

    def _slab(self, size: int) -> Slab:
        slab = self._make(size)
        self._slabs.add(slab)
        self.registered += size
        return slab

    def _unused(self, before: float) -> set[Slab]:
        free: Counter[Slab] = Counter()
        for blocks in self._free.values():
            free.update(one.slab for one in blocks if one.returned <= before)
        sizes = {one.slab: one.size for blocks in self._free.values() for one in blocks}
        return {slab for slab, count in free.items() if count == slab.size // sizes[slab]}

    def _trim(self, coming: int) -> None:
        """Drops free large slabs of other sizes while too much memory would be kept."""
        for size in sorted(self._free, reverse=True):
            blocks = self._free[size]
            while blocks and size > SLAB // 2 and self.registered + coming > self._kept:
                self._without(blocks.pop().slab).close()

    def _without(self, slab: Slab) -> Slab:
        """The slab, which is not the pool's any more."""
        self._slabs.discard(slab)
        self.registered -= slab.size
        return slab
