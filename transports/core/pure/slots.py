"""Slots: equal pieces of memory that two processes share."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from transfer.transports.core.pure.pool import Region, copy_into

MOST = 64
FREE, USED = 0, 1


class Slots:
    """A state byte for each slot at the beginning, the slots from `start` on. Thread-safe."""

    def __init__(self, mapping: Any, start: int, size: int, count: int) -> None:
        whole = len(mapping)
        if not (1 <= count <= MOST and count <= start <= whole and 1 <= size <= (whole - start) // count):
            raise ValueError(f"{count} slots of {size} bytes from {start} on do not fit {whole} bytes")
        self.start = start
        self.size = size
        self.count = count
        self._memory = memoryview(mapping)
        self._lent: set[int] = set()
        self._process = os.getpid()
        self._lock = threading.Lock()  # for `take`, where nothing can be collected

    def take(self) -> int:
        """The first free slot, which is used then; -1: there is none."""
        with self._lock:
            index = self._memory[: self.count].tobytes().find(FREE)
            if index >= 0:
                self._memory[index] = USED
        return index

    def fill(self, index: int, data: Any) -> int:
        """Copies a contiguous buffer to the beginning of a slot; returns its bytes. Raises BufferError."""
        nbytes = len(data) if type(data) is bytes else memoryview(data).nbytes
        if not 0 <= index < self.count or nbytes > self.size:
            raise BufferError(f"{nbytes} bytes do not fit slot {index}")
        copy_into(self._view(index, nbytes), data)
        return nbytes

    def free(self, index: int) -> None:
        """Frees a slot. Does nothing in a forked child, which has no slots."""
        if 0 <= index < self.count and self._process == os.getpid():
            self._lent.discard(index)
            self._memory[index] = FREE

    def lend(self, index: int, nbytes: int) -> Region | None:
        """The first bytes of a slot, which is free when their last view is deleted; None: already lent."""
        if not 0 <= index < self.count or not 0 < nbytes <= self.size:
            raise ValueError(f"{nbytes} bytes of slot {index}")
        if index in self._lent:
            return None
        self._lent.add(index)

        # At the interpreter's end the last views are deleted after the modules: no global is there then.
        def deleted(ending: Callable[[], bool] = sys.is_finalizing) -> None:
            if not ending():
                self.free(index)

        return Region(self._view(index, nbytes), deleted)

    @property
    def idle(self) -> bool:
        """Whether every slot is free."""
        return not any(self._memory[: self.count])

    def _view(self, index: int, nbytes: int) -> memoryview:
        begin = self.start + index * self.size
        return self._memory[begin : begin + nbytes]
