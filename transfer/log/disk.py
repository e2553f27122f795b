"""Reserves disk space, makes and syncs folders, and translates the errors of a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transfer.log.private import FOLDER_MODE
from transfer.transports.errors import InternalError, LogFull

#: the system's errors when there is no room
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reserve(fd: int, begin: int, nbytes: int) -> None:
    """Reserves disk space, so that a later write cannot fail for lack of it. Raises LogFull."""
    if nbytes <= 0:
        return
    with disk_errors():
        os.posix_fallocate(fd, begin, nbytes)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises OSErrors as LogFull or InternalError."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LogFull(
                f"no room on the disk: {error.strerror}", hint="free disk space, or let consumers acknowledge"
            ) from error
        raise InternalError(f"the log's folder cannot be written: {error}") from error


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents, and syncs their names. Raises OSError.
    Without the sync a power cut could remove the folder, with all synced files in it."""
    if folder.is_dir():
        with os.scandir(folder) as names:
            if next(names, None) is not None:
                return  # an empty folder may be of a process that ended before it synced the name
    else:
        make_folder(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    with suppress(PermissionError):  # reading the parent is not always allowed
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Syncs a folder: its new and removed names are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
