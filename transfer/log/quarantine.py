"""Keeps files without a known segment in a separate folder, from which nothing deletes them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from transfer.log.disk import sync_folder
from transfer.log.private import FOLDER_MODE, write_private
from transfer.log.segment_files import BLOBS, INDEX, SUFFIX, path_of

_log = logging.getLogger("transfer.log.quarantine")
#: name of the folder in the log's folder
FOLDER = "quarantine"
_OF_SEGMENTS = (SUFFIX, BLOBS, INDEX)


@contextmanager
def of_a_copy() -> Iterator[None]:
    """Disables the log output of this module, for a temporary copy of a log."""
    _log.disabled = True
    try:
        yield
    finally:
        _log.disabled = False


def quarantine(folder: Path, path: Path, why: str) -> None:
    """Moves a file into quarantine, and logs that as an error. Raises OSError."""
    target = folder / FOLDER
    target.mkdir(FOLDER_MODE, exist_ok=True)
    name, number = target / path.name, 1
    while name.exists():
        name, number = target / f"{path.name}.{number}", number + 1
    nbytes = path.stat().st_size
    path.rename(name)
    sync_folder(target)
    sync_folder(folder)
    _log.error("%s (%d bytes) is moved to %s: %s", path, nbytes, name, why)


def save_tail(folder: Path, segment: Path, position: int, data: bytes) -> None:
    """Saves bytes that are cut off a segment's file. Raises OSError."""
    target = folder / FOLDER
    target.mkdir(FOLDER_MODE, exist_ok=True)
    name = target / f"{segment.name}.from-{position}"
    write_private(name, data)
    _log.error("%d bytes after byte %d of %s are saved in %s", len(data), position, segment, name)


def without_segment(folder: Path, firsts: Collection[int]) -> list[Path]:
    """Returns the files of unknown segments."""
    found = []
    for suffix in (BLOBS, INDEX):
        for path in sorted(folder.glob(f"*{suffix}")):
            name = path.name.removesuffix(suffix)
            if name.isdecimal() and int(name) not in firsts:
                found.append(path)
    return found


def quarantine_segment(folder: Path, first: int, why: str) -> None:
    """Moves all files of a segment into quarantine."""
    for suffix in _OF_SEGMENTS:
        path = path_of(folder, first, suffix)
        if path.exists():
            quarantine(folder, path, why)


def quarantined(folder: Path) -> int:
    """Returns the bytes in quarantine."""
    target = folder / FOLDER
    return sum(path.stat().st_size for path in target.iterdir()) if target.is_dir() else 0
