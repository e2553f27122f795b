"""Processor time of all processes below this one: Java, Spark's Python workers, the spool, the trainer."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def used() -> float:
    """Returns the seconds so far of this process, its running descendants, and those that have ended."""
    return sum(_of(pid) for pid in [os.getpid(), *below(os.getpid())]) / _TICK


def used_by(pid: int) -> float:
    """Returns the seconds of one process so far."""
    return _of(pid) / _TICK


def below(pid: int) -> list[int]:
    """Returns all descendants of a process."""
    found = []
    for task in _list(Path(f"/proc/{pid}/task")):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *below(int(child))]
    return found


def _of(pid: int) -> int:
    """Returns ticks: user, system, and those of its children that it has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(int(field) for field in text.rpartition(")")[2].split()[11:15])


def _list(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []
