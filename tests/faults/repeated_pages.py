"""Many gigabytes of addresses over little memory: the same pages again and again.

What is written to or read from a socket there is as long as it says. Only the memory behind it is
that of one window, so what stays of a received tensor is its last window.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator

import numpy
import numpy.typing

#: bytes of memory
WINDOW = 256 << 20
_PROT_NONE, _MAP_FIXED = 0, 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def pattern() -> numpy.typing.NDArray[numpy.uint64]:
    """What fills one window: no two words are the same."""
    return numpy.arange(WINDOW // 8, dtype=numpy.uint64)


@contextlib.contextmanager
def window(nbytes: int) -> Iterator[numpy.typing.NDArray[numpy.uint64]]:
    """`nbytes` of addresses, a multiple of WINDOW. Nothing may refer to them afterwards."""
    assert nbytes % WINDOW == 0
    start = _map(None, nbytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    memory = os.memfd_create("window")
    try:
        os.ftruncate(memory, WINDOW)
        for offset in range(0, nbytes, WINDOW):
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            _map(start + offset, WINDOW, protection, mmap.MAP_SHARED | _MAP_FIXED, memory)
        yield numpy.frombuffer((ctypes.c_char * nbytes).from_address(start), numpy.uint64)
    finally:
        os.close(memory)
        # At once it would take the kernel half a second, in which no other thread gets new memory.
        for offset in range(0, nbytes, WINDOW):
            _libc.munmap(start + offset, WINDOW)


def _map(address: int | None, nbytes: int, protection: int, flags: int, fd: int) -> int:
    start = _libc.mmap(address, nbytes, protection, flags, fd, 0)
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return int(start)
