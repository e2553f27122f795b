"""The file with the version of the folder's format: an older program refuses a log that it cannot read.

The file is made when the first segment is synced, so a folder that has it also had a segment.
"""

from __future__ import annotations

import os
from pathlib import Path

from transfer.log.disk import disk_errors, sync_folder
from transfer.log.private import open_file
from transfer.transports.errors import LogDamaged, NotSupported

#: version of the folder's format: which files it has, and what their bytes mean
_NUMBER = 1
NAME = "FORMAT"
_WORDS = "transfer log, format "


def check(folder: Path) -> bool:
    """Returns whether the folder has the file. Raises NotSupported (a newer format), LogDamaged."""
    path = folder / NAME
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    with open(fd, "rb") as file:
        text = file.read(100).decode(errors="replace").strip()
    number = text.removeprefix(_WORDS)
    if not text.startswith(_WORDS) or not number.isdecimal():
        raise LogDamaged(
            f"{path} does not name the log's format", hint=f"its content should be: {_WORDS}{_NUMBER}"
        )
    if int(number) > _NUMBER:
        raise NotSupported(
            f"the log in {folder} has format {number}, and this version reads formats up to {_NUMBER}",
            hint="use a newer version of tensor-transfer",
        )
    return True


def write(folder: Path) -> None:
    """Writes the file, if it is missing. Raises LogFull, InternalError."""
    path = folder / NAME
    if path.exists():
        return
    new = path.with_suffix(".new")
    with disk_errors():
        new.unlink(missing_ok=True)
        fd = open_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, f"{_WORDS}{_NUMBER}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        new.replace(path)
        sync_folder(folder)
