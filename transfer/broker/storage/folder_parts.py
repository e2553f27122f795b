"""The parts of a broker's folder. The log records which parts exist, so that a lost one is detected.

Otherwise a broker would silently make a new database in the place of a lost one, without its dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path

from transfer.broker.storage.dead_letter_table import LETTERS
from transfer.log import Log
from transfer.transports.errors import LogDamaged

#: the log, the database, the audit
LOG, STATE, AUDIT = "log", "state.db", "audit"
#: the parts outside the log
OTHER_PARTS = (STATE, *(f"{STATE}-{kind}" for kind in ("wal", "shm", "journal")), AUDIT, LETTERS)
_MADE = b"broker/parts"


def made_parts(state: Mapping[bytes, bytes]) -> Set[str]:
    """Returns the existing parts, as recorded in a log's state; none for an older version's log."""
    return frozenset(json.loads(state.get(_MADE, b"[]")))


def note_made(log: Log) -> None:
    """Records that all parts exist and are on the disk."""
    _note(log, {STATE, AUDIT})


def lost_state(folder: Path, made: Set[str]) -> str:
    """Returns what is lost with the database, or "" if it exists or was never made."""
    path = folder / STATE
    if STATE not in made or (path.exists() and path.stat().st_size):
        return ""
    return f"{STATE} is missing or empty: dead letters, sessions of direct delivery"


def check_state(log: Log, folder: Path) -> None:
    """Raises LogDamaged if the database is lost."""
    lost = lost_state(folder, made_parts(log.state))
    if lost:
        raise LogDamaged(f"{lost} (to continue without them: transfer broker forget-lost {folder})")


def forget_lost(folder: Path) -> str:
    """Allows the next broker to begin with an empty database; returns what was lost, or "".

    Raises LogInUse, LogDamaged.
    """
    with Log(folder / LOG, damaged="serve") as log:
        made = made_parts(log.state)
        lost = lost_state(folder, made)
        if lost:
            _note(log, made - {STATE})
        return lost


def _note(log: Log, made: Set[str]) -> None:
    if made != made_parts(log.state):
        log.commit(log.put(_MADE, json.dumps(sorted(made)).encode()))
