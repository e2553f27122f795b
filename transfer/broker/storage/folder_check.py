"""Verifies a broker's folder while no broker runs there: reads all files and reports damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from transfer.broker.storage.audit_verification import examine
from transfer.broker.storage.database import Database
from transfer.broker.storage.dead_letter_table import LETTERS, DeadLetters
from transfer.broker.storage.folder_parts import AUDIT, LOG, STATE, lost_state, made_parts
from transfer.log.read_only import LogReport, inspect
from transfer.transports.errors import LogDamaged, LogInUse, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.broker.storage.audit_chain import Json

#: most problems that are reported of one part
_MAX_PROBLEMS = 20

#: called with the number of bytes read so far
OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FolderPart:
    """One part of the folder. found: its content, for display. problems: its damage; empty: none."""

    name: str
    found: str
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Returns the part as `check --json` writes it."""
        return {"part": self.name, "found": self.found, "problems": list(self.problems)}


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The result of a check."""

    parts: tuple[FolderPart, ...]

    @property
    def whole(self) -> bool:
        """Whether there is no damage."""
        return not any(part.problems for part in self.parts)

    def as_json(self) -> dict[str, Json]:
        """Returns the report as `check --json` writes it."""
        return {"whole": self.whole, "parts": [part.as_json() for part in self.parts]}


def check(folder: Path, on_progress: OnProgress = lambda _: None) -> FolderReport:
    """Reads all files of a broker's folder, and changes none.

    Raises UsageError if the folder has no broker's data, LogInUse if a broker runs there.
    """
    if not (folder / LOG).is_dir():
        raise UsageError(
            f"{folder} has no data of a broker", hint="name the folder of the broker's --data option"
        )
    try:
        result = inspect(folder / LOG, on_progress)  # first: it detects a running broker
    except LogInUse as error:
        raise LogInUse(f"a broker runs on {folder}", hint="end it first") from error
    except LogDamaged as error:
        log, made = FolderPart("log", "it cannot be opened", (_text(error),)), made_parts({})
    else:
        log, made = _log(result), made_parts(result.state)
    return FolderReport((log, *_state(folder, made), *_audit(folder, made)))


def _log(result: LogReport) -> FolderPart:
    verified, damages = result.verified, result.damages
    more = len(damages) - _MAX_PROBLEMS
    problems = (*damages[:_MAX_PROBLEMS], *((f"and {more} more",) if more > 0 else ()))
    found = f"{verified.records} records and {verified.blobs} large payloads, {verified.nbytes} bytes"
    return FolderPart("log", found, problems)


def _state(folder: Path, made: Set[str]) -> Iterator[FolderPart]:
    lost = lost_state(folder, made)
    if lost:
        yield FolderPart("state", "nothing", (lost,))
    elif (folder / STATE).exists():
        with TemporaryDirectory(prefix="transfer-check-") as copy:
            yield from _state_in(folder, Path(copy))


def _state_in(folder: Path, copy: Path) -> Iterator[FolderPart]:
    """Checks a copy of the database: SQLite would write to one with a write-ahead log when it opens it."""
    try:
        for name in (STATE, f"{STATE}-wal"):
            with suppress(FileNotFoundError):
                copyfile(folder / name, copy / name)
        database = Database(copy / STATE)
    except (TransferError, OSError) as error:
        yield FolderPart("state", "it cannot be opened", (_text(error).replace(str(copy), str(folder)),))
        return
    try:
        tables = database.query("SELECT name FROM sqlite_schema WHERE type = 'table'")
        problems = database.check()
        yield FolderPart("state", f"{len(tables)} tables", tuple(problems[:_MAX_PROBLEMS]))
        if not problems:
            yield _letters(DeadLetters(database, folder / LETTERS))
    except TransferError as error:
        yield FolderPart("state", "it cannot be read", (_text(error).replace(str(copy), str(folder)),))
    finally:
        database.close()


def _letters(letters: DeadLetters) -> FolderPart:
    """Checks each dead letter with its payload."""
    count, problems = 0, []
    for letter in letters.all():
        count += 1
        problem = letters.problem(letter)
        if problem:
            problems.append(f"{letter.delivery_id}: {problem}")
    more = len(problems) - _MAX_PROBLEMS
    reported = (*problems[:_MAX_PROBLEMS], *((f"and {more} more",) if more > 0 else ()))
    return FolderPart("letters", f"{count} dead letters", reported)


def _audit(folder: Path, made: Set[str]) -> Iterator[FolderPart]:
    path = folder / AUDIT
    if path.is_dir() or AUDIT in made:
        verdict = examine(path, begun=AUDIT in made)
        problems = [str(problem) for problem in verdict.problems]
        yield FolderPart("audit", f"{verdict.events} events", tuple(problems[:_MAX_PROBLEMS]))


def _text(error: Exception) -> str:
    """Returns an error's text without its hint."""
    return str(error).partition("\n  hint: ")[0]
