"""The room of the volume on which a broker keeps its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transfer.log.retention import SMALLEST_LOG

_BLOCK = 512  # the unit of `st_blocks`


@dataclass(frozen=True, slots=True)
class VolumeShare:
    """A share of what a volume has free, with what the log takes of it already. A restart changes nothing."""

    percent: int

    def __str__(self) -> str:
        return f"{self.percent}%"


def free_bytes(folder: Path) -> int:
    """What the volume of a folder has free."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def log_room(wanted: int | VolumeShare | None, folder: Path) -> int | None:
    """The bytes that the log in this folder, which need not be there, may take; None: no limit.

    A share is the smallest log at least."""
    if not isinstance(wanted, VolumeShare):
        return wanted
    taken = sum(path.stat().st_blocks * _BLOCK for path in folder.glob("*"))
    return max(SMALLEST_LOG, (free_bytes(folder.parent) + taken) * wanted.percent // 100)
