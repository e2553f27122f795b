"""Shared memory that cannot shrink while it is mapped."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from transfer.transports.errors import InternalError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: left for other programs, which may allocate at the same moment: bytes, and a part of the available memory
_RESERVE = 64 << 20
_RESERVE_PART = 16

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def make_memfd(nbytes: int) -> int:
    """A descriptor of `nbytes` of shared memory, sealed against any change of its size.

    The memory is allocated when this returns: a machine without memory raises an error here, and sends no
    signal at the first write. Raises InternalError, OSError.
    """
    # The kernel allocates page by page until it has to kill a process; so the check is done here.
    available = available_memory()
    left = available - max(_RESERVE, available // _RESERVE_PART)
    if nbytes > left:
        raise InternalError(
            f"no {nbytes} bytes of shared memory: {max(0, left)} are left", hint="does a memory limit apply?"
        )
    # `map`: a signal handler runs after a call, where no owner would close the descriptor yet.
    [fd] = map(os.memfd_create, ("transfer",), (os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING,))
    try:
        os.ftruncate(fd, nbytes)
        os.posix_fallocate(fd, 0, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
            hint = "does a memory limit apply?"
            raise InternalError(f"no {nbytes} bytes of shared memory", hint=hint) from error
        raise
    return fd


class MemfdOwner:
    """Closes its memfd when it is deleted at the latest: a signal handler may raise wherever it is made."""

    fd = -1

    def close_fd(self) -> None:
        """Mappings stay. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close_fd


def available_memory() -> int:
    """Bytes that can be allocated without harm to other programs: of the machine, and of the control groups
    of this process. A terabyte where the system does not report it."""
    left = 1 << 40
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left = int(line.split()[1]) << 10
        path = next(line[3:] for line in _CGROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, ValueError, IndexError, StopIteration):
        return left
    group = _CGROUPS / path.strip("/")
    for each in (group, *group.parents):
        if each == _CGROUPS.parent:
            break
        left = min(left, _left_in(each, left))
    return left


def _left_in(group: Path, unlimited: int) -> int:
    """The bytes that a control group (version 2) still allows; its page cache counts as free."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return unlimited
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit) - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return unlimited
