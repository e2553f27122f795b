"""Shared memory as Python sees it: made, sealed, mapped, and unmapped when the last view dies.

Not by `mmap.mmap`, which keeps a descriptor for each mapping (until Python 3.13).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import weakref

from transports.errors import InternalError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def make_memfd(nbytes: int) -> int:
    """A descriptor of so much shared memory, sealed against any change of its size.

    The memory is there when this returns: a machine without any left says so here, and not by a
    signal at the first write. Raises InternalError.
    """
    fd = os.memfd_create("transfer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOMEM, errno.ENOSPC):
            hint = "does a memory limit apply?"
            raise InternalError(f"no {nbytes} bytes of shared memory", hint=hint) from error
        raise
    return fd


def mapped(fd: int, size: int, *, private: bool = False) -> memoryview:
    """Maps the first `size` bytes, writable; private: as a copy on write. The descriptor may be
    closed afterwards. Unmapped when the last view dies. Raises OSError."""
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array = (ctypes.c_char * size).from_address(address)
    weakref.finalize(array, _libc.munmap, address, size).atexit = False
    return memoryview(array).cast("B")
