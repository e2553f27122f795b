"""Memory that a service has freed goes back to the system: the C library keeps it where pieces of all sizes
came and went, as at the end of a storm of connections."""

from __future__ import annotations

import ctypes
import time

#: freed bytes that are kept for what comes next: to take memory again costs time too
_KEPT = 64 << 20
#: seconds between two looks
_PAUSE = 10.0


class _Mallinfo2(ctypes.Structure):
    """What glibc tells of its memory, since 2.33; see mallinfo2(3)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
        "keepcost",
    ))  # fmt: skip


class FreeMemory:
    """Of this process. Without glibc it does nothing. For one thread."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _Mallinfo2
        self._due = time.monotonic() + _PAUSE
        self._before = 0

    def give_back(self) -> bool:
        """Looks now and then whether much is free, and stays so: then it goes back, which takes some 50 ms
        for 1 GB. Whether it did."""
        if self._info is None or self._trim is None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _PAUSE
        free, before = int(self._info().fordblks), self._before
        self._before = free
        if min(free, before) < _KEPT:
            return False
        self._trim(0)
        self._before = 0
        return True
