"""The parts of a broker's folder. The log remembers which of them were made, so that a lost one is missed.

Without that a broker would begin a new database in the place of a lost one, and nothing would say that dead
letters are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path

from transfer.broker.storage.dead_letters import LETTERS
from transfer.log import Log
from transfer.transports.errors import LogDamaged

#: the log, the database, the audit
LOG, STATE, AUDIT = "log", "state.db", "audit"
#: what the log does not look after itself
OTHER_PARTS = (STATE, *(f"{STATE}-{kind}" for kind in ("wal", "shm", "journal")), AUDIT, LETTERS)
_MADE = b"broker/parts"


def made_parts(state: Mapping[bytes, bytes]) -> Set[str]:
    """The parts that were made, as a log's state says: none of an older version's."""
    return frozenset(json.loads(state.get(_MADE, b"[]")))


def note_made(log: Log) -> None:
    """All parts are there, and on the disk."""
    _note(log, {STATE, AUDIT})


def lost_state(folder: Path, made: Set[str]) -> str:
    """What is lost with the database, or "" if it is there, or was never made."""
    path = folder / STATE
    if STATE not in made or (path.exists() and path.stat().st_size):
        return ""
    return f"{STATE} is missing or empty: dead letters, routes, sessions of direct delivery"


def check_state(log: Log, folder: Path) -> None:
    """Raises LogDamaged: the database is lost."""
    lost = lost_state(folder, made_parts(log.state))
    if lost:
        raise LogDamaged(f"{lost} (to go on without them: transfer broker forget-lost {folder})")


def forget_lost(folder: Path) -> str:
    """The next broker begins with an empty database. What was lost, or "". Raises LogInUse, LogDamaged."""
    with Log(folder / LOG, damaged="serve") as log:
        made = made_parts(log.state)
        lost = lost_state(folder, made)
        if lost:
            _note(log, made - {STATE})
        return lost


def _note(log: Log, made: Set[str]) -> None:
    if made != made_parts(log.state):
        log.commit(log.put(_MADE, json.dumps(sorted(made)).encode()))
