"""Room on the disk, folders and their names there, and the errors of a disk that is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transfer.log.private import FOLDER_MODE
from transfer.transports.errors import InternalError, LogFull

#: what the system says when there is no room
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reserve(fd: int, begin: int, nbytes: int) -> None:
    """Keeps room on the disk, so that writing there later cannot fail for want of it. Raises LogFull."""
    if nbytes <= 0:
        return
    with disk_errors():
        os.posix_fallocate(fd, begin, nbytes)


@contextmanager
def disk_errors() -> Iterator[None]:
    """The system's errors in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LogFull(
                f"no room on the disk: {error.strerror}", hint="free some, or let consumers acknowledge"
            ) from error
        raise InternalError(f"the log's folder cannot be written: {error}") from error


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are not there. Their names are on the disk: else a power cut
    takes the folder, with all that was synced in it. Raises OSError."""
    if folder.is_dir():
        with os.scandir(folder) as names:
            if next(names, None) is not None:
                return  # an empty one may be of a process that ended before its name was synced
    else:
        make_folder(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    with suppress(PermissionError):  # to look into the one above is not always allowed
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """New and removed names are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
