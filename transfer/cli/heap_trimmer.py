"""Returns freed memory to the system, which the C library keeps, for example after a peak of connections."""

from __future__ import annotations

import ctypes
import time

#: freed bytes that stay with the process, since allocating them again takes time
_KEPT_BYTES = 64 << 20
#: seconds between two checks
_INTERVAL = 10.0


class _Mallinfo2(ctypes.Structure):
    """The result of glibc's mallinfo2(3), since 2.33."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
        "keepcost",
    ))  # fmt: skip


class HeapTrimmer:
    """Trims the heap of this process. Without glibc it does nothing. Not thread-safe."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _Mallinfo2
        self._due = time.monotonic() + _INTERVAL
        self._free_before = 0
        self._trimmed = 0  # glibc still counts memory as free that it returned from the middle of the heap

    def trim(self) -> bool:
        """Trims the heap if much memory was free at two checks in a row. Returns whether it did.

        Call it often. To trim 1 GB takes some 50 ms.
        """
        if self._info is None or self._trim is None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _INTERVAL
        free, before = int(self._info().fordblks), self._free_before
        self._free_before = free
        self._trimmed = min(self._trimmed, free)
        if min(free, before) - self._trimmed < _KEPT_BYTES:
            return False
        self._trim(0)
        self._trimmed = int(self._info().fordblks)
        return True
