"""Shared memory that cannot shrink under whoever maps it."""

from __future__ import annotations

import errno
import fcntl
import os

from transports.errors import InternalError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


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
