"""The names of a segment's files in a log's folder, and the removal of these files."""

from __future__ import annotations

from pathlib import Path

from transfer.log.disk import sync_folder

SUFFIX, BLOBS, INDEX = ".log", ".blobs", ".index"
#: suffix of a segment's file of records while the segment is being removed
REMOVED = ".removed"


def path_of(folder: Path, first: int, suffix: str = SUFFIX) -> Path:
    """Returns the path of a file of the segment that begins with this record."""
    return folder / f"{first:020d}{suffix}"


def finish_removals(folder: Path) -> None:
    """Removes the files of segments that are being removed. Raises OSError.
    The renamed file marks the others as removed, so it goes last."""
    firsts = segments_in(folder, REMOVED)
    for first in firsts:
        for suffix in (INDEX, BLOBS):
            path_of(folder, first, suffix).unlink(missing_ok=True)
    if firsts:
        sync_folder(folder)
    for first in firsts:
        path_of(folder, first, REMOVED).unlink(missing_ok=True)


def segments_in(folder: Path, suffix: str = SUFFIX) -> list[int]:
    """Returns the first sequences of the segments in a folder, in order."""
    names = (path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}"))
    return sorted(int(name) for name in names if name.isdecimal())
