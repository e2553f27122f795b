"""Memory that is shareable from its allocation: `context.empty` returns arrays in blocks of this pool.

A payload inside a block reaches a peer on this host as the block's descriptor, whatever its size.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from transfer.transports.errors import InternalError
from transfer.transports.gpu import OnGpu
from transfer.transports.shm.memory import MemfdOwner, make_memfd
from transfer.transports.shm.segments import PAGE

NAME = "local.blocks"  # in Surroundings.shared
#: bytes of unused blocks that are kept for reuse; further unused blocks return to the system
KEPT = 256 << 20


class Loan(NamedTuple):
    """The bytes of a block that a peer sees. private: as a copy on write."""

    block: Block
    offset: int
    nbytes: int
    private: bool


class Block(MemfdOwner):
    """One memfd, mapped here. Raises InternalError, OSError."""

    def __init__(self, core: Any, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.fd = make_memfd(size)
        try:
            self.memory = memoryview(core.Mapping(self.fd, size))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            hint = "does a memory limit apply?"
            raise InternalError(f"{size} bytes of shared memory cannot be mapped", hint=hint) from error
        self.address: int = core.address_of(self.memory)
        #: an array lies in it
        self.owned = True
        self.loans: list[Loan] = []
        #: called when the block is given up: by connections that announced it to a peer
        self.watchers: dict[object, Callable[[int], None]] = {}

    @property
    def idle(self) -> bool:
        return not self.owned and not self.loans

    def may_lend(self, wanted: Loan) -> bool:
        """Memory that one peer may write to is shown to no other peer at the same time."""
        return all(
            (loan.private and wanted.private)
            or loan.offset + loan.nbytes <= wanted.offset
            or wanted.offset + wanted.nbytes <= loan.offset
            for loan in self.loans
        )

    def close(self) -> None:
        """Existing arrays keep their memory. Idempotent."""
        self.close_fd()
        for on_given_up in list(self.watchers.values()):
            on_given_up(self.number)


class Blocks:
    """The shareable memory of one context. Thread-safe.

    A block is reused when its array is deleted and no peer refers to it any more.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        # Reentrant, and so is the work under `_changing`: the collector may end an array inside any statement
        # of this class, which must not lose what that statement works on.
        self._lock = threading.RLock()
        self._changing = False
        self._numbers = itertools.count(1)
        #: sorted by address; replaced and never changed, so that readers need no lock
        self._blocks: tuple[Block, ...] = ()
        self._closed = False
        self._pid = os.getpid()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.size for block in self._blocks)

    def allocate(self, nbytes: int) -> Any:
        """A region of `nbytes` zeroed or used bytes, page aligned. Raises InternalError, OSError."""
        size = max(1, -(-nbytes // PAGE)) * PAGE
        block = self._reused(size)
        if block is None:
            block = Block(self._core, next(self._numbers), size)  # outside the lock: zeroing takes long
            self._change(add=block)

        # At the interpreter's end the last arrays are deleted after the modules: no global is there then.
        def deleted(ending: Callable[[], bool] = sys.is_finalizing) -> None:
            if not ending():
                self._disown(block)

        return self._core.Region(block.memory[:nbytes], deleted)

    def _reused(self, size: int) -> Block | None:
        with self._lock:
            for block in self._blocks:
                if block.size == size and block.idle:
                    block.owned = True
                    return block
        return None

    def find(self, address: int, nbytes: int) -> tuple[Block, int] | None:
        """(the block that holds all of these bytes, their offset in it), or None."""
        blocks = self._blocks
        index = bisect.bisect(blocks, address, key=_address) - 1
        if index < 0:
            return None
        offset = address - blocks[index].address
        return (blocks[index], offset) if offset + nbytes <= blocks[index].size else None

    def holds(self, data: Any) -> bool:
        """Whether a contiguous buffer lies in a block."""
        if not self._blocks or type(data) in (bytes, OnGpu):
            return False
        return self.find(self._core.address_of(data), memoryview(data).nbytes) is not None

    def lend(self, data: Any, nbytes: int, *, private: bool) -> Loan | None:
        """Shows the bytes of a buffer to a peer, until `give_back`. None: they are in no block, or another
        peer sees them and may write to them."""
        found = self.find(self._core.address_of(data), nbytes)
        if found is None:
            return None
        loan = Loan(found[0], found[1], nbytes, private)
        with self._lock:
            if self._closed or not loan.block.may_lend(loan):
                return None
            loan.block.loans.append(loan)
        return loan

    def give_back(self, loan: Loan) -> None:
        """The peer does not see it any more."""
        with self._lock:
            loan.block.loans.remove(loan)
        self._tidy()

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def close(self) -> None:
        """Existing arrays keep their memory. Idempotent."""
        with self._lock:
            self._closed = True
            blocks, self._blocks = self._blocks, ()
        for block in blocks:
            block.close()

    def _disown(self, block: Block) -> None:
        """An array was deleted, in any thread, inside any statement."""
        if self._pid == os.getpid():
            block.owned = False
            self._tidy()

    def _tidy(self) -> None:
        """Frees unused blocks beyond KEPT. If another thread does so at this moment, it checks again."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._changing:
                    self._change()
            finally:
                self._lock.release()

    def _change(self, add: Block | None = None) -> None:
        with self._lock:
            self._changing = True
            try:
                blocks = (*self._blocks, add) if add is not None else self._blocks
                gone = _surplus(blocks)
                if add is not None or gone:
                    left = (block for block in blocks if block not in gone)
                    self._blocks = tuple(sorted(left, key=_address))
            finally:
                self._changing = False
        for block in gone:
            block.close()


def _surplus(blocks: tuple[Block, ...]) -> set[Block]:
    """The largest idle blocks, so that no more than KEPT bytes are idle."""
    idle = sorted((block for block in blocks if block.idle), key=lambda block: block.size)
    gone = set()
    left = sum(block.size for block in idle)
    while left > KEPT:
        block = idle.pop()
        left -= block.size
        gone.add(block)
    return gone


def _address(block: Block) -> int:
    return block.address
