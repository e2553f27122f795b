"""Files and folders that other users of the host may neither read nor write."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

_log = logging.getLogger("transfer.log")

#: of each file and folder that is made
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS = 0o077


def write_private(path: Path, data: bytes) -> None:
    """A file with these bytes. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "wb") as file:
        file.write(data)


def close_to_others(folder: Path, inside: Sequence[str] | None = None) -> None:
    """Takes from group and others what they may do with a folder and all in it: an old version let them read.

    inside: only these of what is in it. What belongs to another user, such as the root of a mounted volume,
    stays as it is. Raises OSError.
    """
    parts = [folder, *(path for name in inside or () for path in _all_in(folder / name))]
    changed = sum(map(_close, parts if inside is not None else _all_in(folder)))
    if changed:
        _log.warning("%s: %d files and folders were open to other users; now they are not", folder, changed)


def _all_in(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))


def _close(path: Path) -> bool:
    """Whether there was something to take."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    ours = found.st_uid == os.geteuid() and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    if not ours or not found.st_mode & _OTHERS or found.st_mode & stat.S_ISVTX:  # /tmp is for all
        return False
    path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return True
