"""Reads all that a broker keeps in its folder, while no broker runs there, and tells what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transfer.broker.state.database import Database
from transfer.broker.state.dead_letters import DeadLetters
from transfer.broker.state.verification import examine
from transfer.log import Log
from transports.errors import LogDamaged, LogInUse, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.state.chain import Json

#: problems of one part that are told
_TOLD = 20
#: the parts of a broker's folder: the log, the database (with the files of dead letters), the audit
LOG, STATE, AUDIT = "log", "state.db", "audit"

#: is told how many bytes were read until now
Read = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the folder. found: what it has, for people. problems: what is damaged; none: it is
    whole."""

    name: str
    found: str
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """As `check --json` writes it."""
        return {"part": self.name, "found": self.found, "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    parts: tuple[Part, ...]

    @property
    def whole(self) -> bool:
        """Nothing is damaged."""
        return not any(part.problems for part in self.parts)

    def as_json(self) -> dict[str, Json]:
        """As `check --json` writes it."""
        return {"whole": self.whole, "parts": [part.as_json() for part in self.parts]}


def check(folder: Path, read: Read = lambda _: None) -> Report:
    """Reads everything. A tail that a crash tore off is repaired, as a start would.

    Raises UsageError when there is no broker's data, LogInUse when a broker runs there.
    """
    if not (folder / LOG).is_dir():
        raise UsageError(
            f"{folder} has no data of a broker", hint="name the folder that --data was given when it ran"
        )
    log = _log(folder / LOG, read)  # first: it tells whether a broker runs there
    return Report((log, *_state(folder), *_audit(folder)))


def _log(folder: Path, read: Read) -> Part:
    try:
        log = Log(folder, damaged="serve")
    except LogInUse as error:
        raise LogInUse(f"a broker runs on {folder.parent}", hint="end it first") from error
    except LogDamaged as error:
        return Part("log", "it cannot be opened", (_text(error),))
    with log:
        verified = log.verify(read)
        damages = [*dict.fromkeys((*(one.text for one in log.damage), *verified.damages))]
    more = len(damages) - _TOLD
    problems = (*damages[:_TOLD], *((f"and {more} more",) if more > 0 else ()))
    found = f"{verified.records} records and {verified.blobs} large payloads, {verified.nbytes} bytes"
    return Part("log", found, problems)


def _state(folder: Path) -> Iterator[Part]:
    path = folder / STATE
    if not path.exists():
        return
    try:
        database = Database(path)
    except (TransferError, OSError) as error:
        yield Part("state", "it cannot be opened", (_text(error),))
        return
    try:
        tables = database.query("SELECT name FROM sqlite_schema WHERE type = 'table'")
        problems = database.check()
        yield Part("state", f"{len(tables)} tables", tuple(problems[:_TOLD]))
        if not problems:
            yield _letters(DeadLetters(database))
    except TransferError as error:
        yield Part("state", "it cannot be read", (_text(error),))
    finally:
        database.close()


def _letters(letters: DeadLetters) -> Part:
    """Each dead letter, with its payload."""
    count, problems = 0, []
    for letter in letters.all():
        count += 1
        problem = letters.problem(letter)
        if problem:
            problems.append(f"{letter.delivery_id}: {problem}")
    more = len(problems) - _TOLD
    told = (*problems[:_TOLD], *((f"and {more} more",) if more > 0 else ()))
    return Part("letters", f"{count} dead letters", told)


def _audit(folder: Path) -> Iterator[Part]:
    path = folder / AUDIT
    if path.is_dir():
        verdict = examine(path)
        told = [str(problem) for problem in verdict.problems]
        yield Part("audit", f"{verdict.events} events", tuple(told[:_TOLD]))


def _text(error: Exception) -> str:
    """Without its hint."""
    return str(error).partition("\n  hint: ")[0]
