"""One SQLite file for the broker's state outside the log. Committed data is on the disk.

Each store has its tables and a `SCHEMA`: the statements that create them, in order. A later version of the
store appends statements and changes none; the database records how many it ran (table `stores`).
`PRAGMA user_version` is the version of the file's format.

SQLite has no checksums: it detects broken pages, but not a changed bit inside a value. A checksum covers the
names of tables and columns here; a store that must detect damaged rows keeps a `row_check` in each row.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from transfer.log.disk import make_folder
from transfer.log.private import open_file
from transfer.transports.errors import (
    Closed,
    InternalError,
    LogDamaged,
    LogFull,
    LogInUse,
    NotSupported,
    StateError,
    TransferError,
    UsageError,
)

#: version of the file's format, as `PRAGMA user_version`
FORMAT = 1
#: marks a SQLite file as a broker's ("tbrk")
APPLICATION = 0x7462726B
#: seconds that a statement waits for another process that has the file locked
BUSY = 5.0

#: a value that SQLite stores unchanged
Value = str | int | float | bytes | None

_STORES = """
CREATE TABLE stores (
    name TEXT PRIMARY KEY,
    statements INTEGER NOT NULL CHECK (statements >= 0)
) WITHOUT ROWID
"""
_SEAL = "CREATE TABLE seal (one INTEGER PRIMARY KEY CHECK (one = 1), row_check INTEGER NOT NULL)"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_WHAT_TO_DO = (
    "nothing was changed; keep a copy of the file, then restore a backup, or save the readable rows "
    "(sqlite3 FILE .recover) into a new file of this name"
)


class Database:
    """A SQLite file with a write-ahead log and full synchronisation. Makes the file if it is missing.

    Any thread may use it; calls run one at a time. Raises LogDamaged for a file that is damaged or no
    database, and leaves it unchanged; NotSupported for a file of a later version; UsageError for a file of
    another program. Call `close` at the end; it is idempotent.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        make_folder(self.path.parent)
        with _translated(self.path):
            # SQLite would make a file that all users can read; its other files take the mode of this one.
            with suppress(OSError):  # SQLite reports the error
                os.close(open_file(self.path, os.O_RDWR | os.O_CREAT))
            if self.path.exists() and self.path.stat().st_size:
                _inspect(self.path)
            connection = _connect(self.path)
            try:
                _prepare(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def prepare(self, store: str, schema: Sequence[str]) -> None:
        """Runs the statements of a store's schema that this file has not run yet, all of them or none.

        Raises NotSupported if the file has run more than there are: a later version wrote it.
        """
        with self.transaction() as connection:
            row = connection.execute("SELECT statements FROM stores WHERE name = ?", (store,)).fetchone()
            done = int(row[0]) if row else 0
            if done > len(schema):
                raise NotSupported(
                    f"{self.path} has version {done} of {store!r}, and this program knows {len(schema)}",
                    hint="a later version of this program wrote it: use that version",
                )
            for statement in schema[done:]:
                connection.execute(statement)
            if done < len(schema):
                connection.execute("INSERT OR REPLACE INTO stores VALUES (?, ?)", (store, len(schema)))
                _seal(connection)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs the block as one transaction: it takes effect as a whole, or not at all if the block raises.

        It is on the disk when the block has ended. Raises StateError for a block inside another, LogFull when
        the disk is full, LogDamaged, LogInUse, InternalError. sqlite3.IntegrityError passes unchanged.
        """
        with self._lock:
            connection = self._opened()
            if connection.in_transaction:
                raise StateError("a transaction inside another")
            with _translated(self.path):
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:  # the block raised, or the commit failed
                        connection.execute("ROLLBACK")

    def query(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        """Returns all rows that a SELECT finds, outside of a transaction. Raises as `transaction` does."""
        with self._lock, _translated(self.path):
            return self._opened().execute(statement, values).fetchall()

    def check(self, *, full: bool = True) -> list[str]:
        """Returns the damage that SQLite finds; an empty list if there is none. Reads the whole file.

        full: also compares indexes with their tables, and checks references between tables.
        """
        try:
            with self._lock, _translated(self.path):
                return _problems(self._opened(), full=full)
        except LogDamaged as error:  # so broken that it cannot be checked
            return [str(error)]

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Closed(f"the database {self.path} was closed")
        return self._connection


def row_check(*values: Value) -> int:
    """Returns a checksum over a row's values, which detects any changed bit; 0 to 2^32 - 1.

    Types count: 1, 1.0, "1" and None differ.
    """
    return zlib.crc32("\0".join(map(repr, values)).encode("utf-8", "surrogatepass"))


def _connect(path: Path, *, mode: str = "rwc") -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, timeout=BUSY, isolation_level=None, check_same_thread=False, uri=True)
    # A changed bit may make text invalid UTF-8: it must not hide the other rows.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    return connection


def _inspect(path: Path) -> None:
    """Checks a file without changing it, or its write-ahead log."""
    try:
        _inspect_in(path, "ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        # The program crashed while it made the file, before the write-ahead log: SQLite rolls back first.
        _inspect_in(path, "rw")


def _inspect_in(path: Path, mode: str) -> None:
    connection = _connect(path, mode=mode)
    try:
        version = _pragma(connection, "user_version")
        known = _pragma(connection, "application_id")
        tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
        if not tables:
            return  # a new file
        if known != APPLICATION:
            raise UsageError(f"{path} is a database of another program")
        if version > FORMAT:
            raise NotSupported(
                f"{path} has format {version}, and this program knows {FORMAT}",
                hint="a later version of this program wrote it: use that version",
            )
        problems = _problems(connection, full=False)
        if not problems and not _is_sealed(connection):
            problems = ["its tables are not those that this program made"]
        if problems:
            raise LogDamaged(f"the database {path} is broken: {problems[0]}", hint=_WHAT_TO_DO)
    except UnicodeDecodeError as error:  # SQLite's error text quotes the damaged text
        raise LogDamaged(f"the database {path} is broken: {error}", hint=_WHAT_TO_DO) from error
    finally:
        connection.close()


def _seal(connection: sqlite3.Connection) -> None:
    """Stores a checksum of all tables and stores: SQLite would accept a damaged name as another name."""
    connection.execute("INSERT OR REPLACE INTO seal VALUES (1, ?)", (_tables_check(connection),))


def _is_sealed(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT row_check FROM seal").fetchone()
    return row is not None and row[0] == _tables_check(connection)


def _tables_check(connection: sqlite3.Connection) -> int:
    tables = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    ).fetchall()
    stores = connection.execute("SELECT name, statements FROM stores ORDER BY name").fetchall()
    return row_check(*(value for row in tables + stores for value in row))


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # After a failed sync, frames of the log may be in memory only, and no later sync writes them. The
    # checkpoint writes their content into the database file, and the log begins again.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute("BEGIN IMMEDIATE")
    if _pragma(connection, "user_version") < FORMAT:
        connection.execute(_STORES)
        connection.execute(_SEAL)
        _seal(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _problems(connection: sqlite3.Connection, *, full: bool) -> list[str]:
    check = "integrity_check" if full else "quick_check"
    found = [str(row[0]) for row in connection.execute(f"PRAGMA {check}")]
    if full:
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
        found += [f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]
    return [text for text in found if text != "ok"]


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raises SQLite's errors as TransferError; IntegrityError (a violated constraint) passes unchanged."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        raise _translate(path, error) from error


def _translate(path: Path, error: sqlite3.DatabaseError) -> TransferError:
    # Only errors of SQLite itself have a code; the low byte is the primary code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGED:
        return LogDamaged(f"the database {path} is broken: {error}", hint=_WHAT_TO_DO)
    if code in _LOCKED:
        return LogInUse(f"the database {path} is locked by another process")
    if code == sqlite3.SQLITE_FULL:
        return LogFull(f"no room on the disk for {path}")
    return InternalError(f"{path}: {error}")
