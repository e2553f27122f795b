"""Memory that can be shared from birth: what `context.empty` gives out lies in blocks of this pool.

A payload inside a block travels to a peer on this host as the block's descriptor, whatever its size.
"""

from __future__ import annotations

import bisect
import os
import threading
from typing import Any

from transports.local.memory import make_memfd
from transports.local.segments import PAGE

NAME = "local.blocks"  # in Surroundings.shared
#: bytes of blocks kept for reuse
KEPT = 256 << 20


class Block:
    """One memfd, mapped here. `shares`: how many messages still refer to it."""

    def __init__(self, core: Any, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.fd = make_memfd(size)
        self.memory = memoryview(core.Mapping(self.fd, size))
        self.address: int = core.address_of(self.memory)
        self.shares = 0
        self.owned = True  # somebody has an array in it

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Blocks:
    """The shareable memory of one context. Thread-safe.

    A block is reused when its array is dead and no peer refers to it any more.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        # Reentrant: the collector may end an array inside any statement of ours.
        self._lock = threading.RLock()
        self._numbers = 0
        self._addresses: list[int] = []
        self._blocks: list[Block] = []  # in the order of their addresses
        self._closed = False
        self._pid = os.getpid()

    def allocate(self, nbytes: int) -> Any:
        """A region of so many zeroed or used bytes, page aligned. Raises InternalError."""
        size = max(1, -(-nbytes // PAGE)) * PAGE
        with self._lock:
            block = next((b for b in self._blocks if not b.owned and not b.shares and b.size == size), None)
            if block is not None:
                block.owned = True
            else:
                self._trim(KEPT)
                self._numbers += 1
                block = Block(self._core, self._numbers, size)
                index = bisect.bisect(self._addresses, block.address)
                self._addresses.insert(index, block.address)
                self._blocks.insert(index, block)
        return self._core.Region(block.memory[:nbytes], lambda: self._disown(block))

    def find(self, address: int, nbytes: int) -> tuple[Block, int] | None:
        """(the block that holds these bytes whole, where in it), or None."""
        with self._lock:
            index = bisect.bisect(self._addresses, address) - 1
            if index < 0:
                return None
            block = self._blocks[index]
            offset = address - block.address
            return (block, offset) if offset + nbytes <= block.size else None

    def holds(self, data: Any) -> bool:
        """Whether a contiguous buffer lies in a block."""
        if type(data) is bytes:
            return False
        return self.find(self._core.address_of(data), memoryview(data).nbytes) is not None

    def share(self, block: Block, change: int) -> None:
        """One message more or less refers to the block."""
        with self._lock:
            block.shares += change

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def close(self) -> None:
        """Arrays that are out keep their memory. Idempotent."""
        with self._lock:
            self._closed = True
            for block in self._blocks:
                block.close()
            self._blocks.clear()
            self._addresses.clear()

    def _disown(self, block: Block) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            block.owned = False

    def _trim(self, keep: int) -> None:
        """Lets go of unused blocks beyond so many bytes."""
        idle = [block for block in self._blocks if not block.owned and not block.shares]
        while sum(block.size for block in idle) > keep:
            block = idle.pop()
            index = self._blocks.index(block)
            del self._blocks[index], self._addresses[index]
            block.close()
