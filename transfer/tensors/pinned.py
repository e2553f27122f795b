"""Pinned host memory of large messages, kept from one message to the next.

Pinning takes longer than the copy that it is for: the system has to fault in, clear and lock each page. So a
message takes memory that an earlier one has returned. One limit holds for all of it together, in use or not.
What no message has used for some time goes back to the system.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from transfer import config
from transfer.transports import core
from transfer.transports.errors import InternalError
from transfer.transports.shm.memory import available_memory
from transfer.units import show_size

#: bytes of all pinned memory of a process, unless TRANSFER_GPU_PINNED says otherwise
LIMIT: Final = 4 << 30
#: where that is more than this part of the memory that is available, the part is the limit
_PART: Final = 4
#: seconds; giving back takes up to twice as long
_REST: Final = 30.0
#: sizes are multiples of this, so that messages of similar sizes share memory
STEP: Final = 32 << 20
#: of madvise; Python's mmap does not name it
_WIPE_ON_FORK: Final = 18

logger = logging.getLogger("transfer")


def pages(nbytes: int) -> mmap.mmap:
    """Memory that is neither cleared nor faulted in under the GIL, in huge pages: fewer faults to wait for.

    Raises InternalError.
    """
    try:
        made = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise InternalError(f"no memory for {nbytes} bytes from a GPU: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages serves small ones
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


#: pins the pages that it is given, and returns what unpins them
Pin = Callable[[mmap.mmap], Callable[[], object]]
#: memory that a library still takes for pinned: nothing else may be mapped there
_lost: Final[list[mmap.mmap]] = []


class _PinnedMemory:
    """`nbytes` of the system's memory, for a GPU's library to pin. Raises InternalError, OSError."""

    def __init__(self, nbytes: int) -> None:
        self._unpin: Callable[[], object] | None = None
        self._pid = os.getpid()
        self.nbytes = nbytes
        #: when a message returned it, by the monotonic clock
        self.returned = 0.0
        self.pages = pages(nbytes)
        # A fork copies pinned pages at once. The child needs none of them, and finds zeros there.
        self.pages.madvise(_WIPE_ON_FORK)

    def pin(self, pin: Pin) -> None:
        self._unpin = pin(self.pages)

    def __del__(self) -> None:
        if self._unpin is None or self._pid != os.getpid() or sys.is_finalizing():
            return
        try:
            self._unpin()
        except (InternalError, RuntimeError) as error:
            _lost.append(self.pages)
            logger.warning("%s of pinned memory are lost: %s", show_size(self.nbytes), str(error))


class PinnedPool:
    """Lends pinned memory, within a limit. Thread-safe.

    limit: bytes; None: what the environment says, or LIMIT. rest: seconds.
    """

    def __init__(self, limit: int | None = None, rest: float = _REST) -> None:
        self._limit = limit
        self._rest = rest
        # Reentrant: a signal handler may send a tensor, too.
        self._lock = threading.RLock()
        #: lent or not, until it is unpinned
        self._all: weakref.WeakSet[_PinnedMemory] = weakref.WeakSet()
        #: the least recently used first
        self._idle: list[_PinnedMemory] = []
        #: from finalizers, which run in any statement of any thread and so take no lock
        self._returned: deque[_PinnedMemory] = deque()
        #: memory that a device still reads, and whether it has done so
        self._copying: list[tuple[Any, Callable[[], bool]]] = []
        self._watched = False
        self._empty = threading.Event()
        self._warned = False

    @property
    def total(self) -> int:
        """Bytes of its memory, lent or not."""
        return sum(memory.nbytes for memory in self._all)

    def take(self, nbytes: int, pin: Pin) -> Any:
        """Returns a region of `nbytes`, whose memory comes back when its last view is deleted.

        None: there is no room for that, or it cannot be pinned, which is logged once.
        """
        size = -(-nbytes // STEP) * STEP
        memory = self._kept(size) or self._made(size, pin)
        if memory is None:
            return None
        view = memoryview(memory.pages)[:nbytes]
        return core.Region(view, functools.partial(self._returned.append, memory))

    def hold(self, memory: Any, is_done: Callable[[], bool]) -> None:
        """Keeps memory, of any origin, until a device has read it."""
        with self._lock:
            self._copying.append((memory, is_done))

    def collect(self) -> None:
        """Sorts out what has been read, and what has been returned."""
        with self._lock:
            self._copying = [(memory, is_done) for memory, is_done in self._copying if not is_done()]
            while self._returned:
                memory = self._returned.popleft()
                memory.returned = time.monotonic()
                self._idle.append(memory)

    def _kept(self, size: int) -> _PinnedMemory | None:
        """Returns the smallest that is large enough, and the last used of these: the others may go."""
        with self._lock:
            self.collect()
            fitting = (memory for memory in reversed(self._idle) if memory.nbytes >= size)
            found = min(fitting, key=lambda memory: memory.nbytes, default=None)
            if found is not None:
                self._idle.remove(found)
            return found

    def _made(self, size: int, pin: Pin) -> _PinnedMemory | None:
        """Pins memory, in place of kept memory if the limit requires that."""
        unused = []
        try:
            with self._lock:
                limit, total = self._allowed(), self.total
                if total - sum(memory.nbytes for memory in self._idle) + size > limit:
                    if limit:
                        self._warn(f"no room in {show_size(limit)} (TRANSFER_GPU_PINNED)")
                    return None
                while total + size > limit:
                    unused.append(self._idle.pop(0))
                    total -= unused[-1].nbytes
                memory = _PinnedMemory(size)
                self._all.add(memory)  # others count it
            del unused  # not under the lock: it waits for the device
            memory.pin(pin)
        except (InternalError, OSError, RuntimeError) as error:  # the libraries' errors are of the last kind
            self._warn(str(error).partition("\n")[0])
            return None
        self._watch()
        return memory

    def _allowed(self) -> int:
        if self._limit is None:
            self._limit = config.pinned_limit()
        if self._limit is None:
            self._limit = min(LIMIT, available_memory() // _PART)
        return self._limit

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("large tensors on a GPU are copied in pieces, which takes longer: %s", reason)

    def give_back(self, unused_for: float = 0.0) -> None:
        """Unpins what no message has used for these seconds."""
        with self._lock:
            self.collect()
            before = time.monotonic() - unused_for
            unused = [memory for memory in self._idle if memory.returned <= before]
            self._idle = [memory for memory in self._idle if memory not in unused]
        del unused  # not under the lock: it waits for the device
        with self._lock:
            if not self.total:
                self._watched = False
                self._empty.set()

    def _watch(self) -> None:
        """Starts the thread that gives memory back, unless it runs."""
        with self._lock:
            if self._watched:
                return
            self._watched = True
            self._empty.clear()
        try:
            threading.Thread(target=self._give_back_in_time, name="transfer-pinned", daemon=True).start()
        except RuntimeError:  # no more threads: the next memory tries it again
            self._watched = False

    def _give_back_in_time(self) -> None:
        while not self._empty.wait(self._rest):
            with contextlib.suppress(RuntimeError):  # of a query of the device
                self.give_back(self._rest)


#: of this process
POOL: Final = PinnedPool()
