"""Checks of the log's arguments: the folder, names, keys, buffers."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Any

from transfer.log.disk import disk_errors, make_folder
from transfer.log.private import claim, open_file
from transfer.transports.errors import LogInUse, UsageError

LOCK = "LOCK"
#: names of a log's files and folders
_OF_A_LOG = re.compile(r"LOCK|FORMAT(\.new)?|quarantine|\d{20}\.\w+").fullmatch
#: most bytes of a topic's or group's name
MAX_NAME = 1024


def lock(folder: Path) -> int:
    """Locks the folder for one log until the descriptor is closed. Raises LogInUse, SecurityError."""
    with disk_errors():
        make_folder(folder)
        _check_content(folder)
        claim(folder)
    fd = open_file(folder / LOCK, os.O_RDWR | os.O_CREAT)
    return _locked(fd, fcntl.LOCK_EX, folder)


def _check_content(folder: Path) -> None:
    """Raises UsageError for a folder of other files, whose permissions `claim` would change."""
    names = set(os.listdir(folder)) - {"lost+found"}
    if names and not any(map(_OF_A_LOG, names)):
        raise UsageError(
            f"{folder} has other files in it, {min(names)!r} for instance",
            hint="name a new folder, an empty one, or one that this program has made",
        )


def lock_shared(folder: Path) -> int:
    """Locks the folder for reading, shared with other readers; returns the descriptor. Raises LogInUse.
    -1: no log was ever open in the folder."""
    try:
        fd = open_file(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return -1
    return _locked(fd, fcntl.LOCK_SH, folder)


def _locked(fd: int, how: int, folder: Path) -> int:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LogInUse(f"the log in {folder} is open elsewhere") from error
    return fd


def parts_of(blob: Any) -> list[memoryview]:
    """Returns a blob's buffers as views of bytes, without empty ones."""
    views = [memoryview(part) for part in (blob if isinstance(blob, list | tuple) else (blob,))]
    return [view.cast("B") for view in views if view.nbytes]


def check_name(name: str) -> None:
    """Checks a topic's or group's name. Raises UsageError."""
    if not 0 < len(name.encode()) <= MAX_NAME:
        raise UsageError(f"a name of {len(name.encode())} bytes", hint=f"1 to {MAX_NAME}")


def check_key(key: bytes) -> None:
    """Checks a key of state. Raises UsageError."""
    if not 0 < len(key) <= MAX_NAME or key[:1] == b"\0":
        raise UsageError(f"the key {key!r:.80}", hint=f"1 to {MAX_NAME} bytes, the first of them not zero")
