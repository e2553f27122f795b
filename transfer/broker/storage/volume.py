"""The free space of the volume that holds a broker's folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transfer.log.retention import SMALLEST_LOG

_BLOCK = 512  # the unit of `st_blocks`


@dataclass(frozen=True, slots=True)
class VolumeShare:
    """A percentage of a volume's free bytes plus the log's: the log's growth does not change the result."""

    percent: int

    def __str__(self) -> str:
        return f"{self.percent}%"


def free_bytes(folder: Path) -> int:
    """Returns the free bytes of a folder's volume."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def log_room(wanted: int | VolumeShare | None, folder: Path) -> int | None:
    """Returns the most bytes that the log in this folder may take; None: no limit. The folder may be missing.
    A share is at least the smallest log."""
    if not isinstance(wanted, VolumeShare):
        return wanted
    taken = sum(path.stat().st_blocks * _BLOCK for path in folder.glob("*"))
    return max(SMALLEST_LOG, (free_bytes(folder.parent) + taken) * wanted.percent // 100)
