"""The table of dead letters in the database.

They are messages that could not be delivered, until an operator replays or purges them.

Rows carry checksums: a damaged row is reported, and the others are served. Large payloads are files next to
the database (`dead_letter_payloads.py`), whose checksums are in the rows.

Each operator's change is noted in its transaction (`Note`), until the audit has it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transfer.broker.core.message import Front
from transfer.broker.storage.database import Database, Value, row_check
from transfer.broker.storage.dead_letter import DeadLetter, Filter, LetterState, PayloadFile, Reference
from transfer.broker.storage.dead_letter_payloads import LetterPayloads, PayloadSource
from transfer.transports.errors import LogDamaged, StateError, UsageError

STORE = "dead_letters"
SCHEMA = [
    """
    CREATE TABLE dead_letters (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        delivery_id TEXT NOT NULL UNIQUE,
        message_id TEXT NOT NULL,
        tenant TEXT NOT NULL,
        consumer TEXT NOT NULL,
        topic TEXT NOT NULL,
        original_topic TEXT NOT NULL,
        reason TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        last_error TEXT NOT NULL,
        first_ms INTEGER NOT NULL,
        last_ms INTEGER NOT NULL,
        headers TEXT NOT NULL,
        payload_bytes INTEGER NOT NULL,
        log_topic TEXT,
        log_offset INTEGER,
        fields_check INTEGER NOT NULL,
        payload BLOB NOT NULL,
        payload_check INTEGER NOT NULL,
        state TEXT NOT NULL,
        replay TEXT NOT NULL
    )
    """,
    "CREATE INDEX dead_letters_by_message ON dead_letters (message_id)",
    "CREATE INDEX dead_letters_by_target ON dead_letters (tenant, consumer, topic)",
    "CREATE INDEX dead_letters_by_state ON dead_letters (state) WHERE state <> 'dead'",
    "CREATE TABLE dead_letter_notes (number INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL)",
    # The second version adds protocol heads and large payloads. Rows of the first version have NULL here, and
    # a fields_check over the columns of the first version.
    "ALTER TABLE dead_letters ADD COLUMN front INTEGER",
    "ALTER TABLE dead_letters ADD COLUMN head BLOB NOT NULL DEFAULT X''",
    "ALTER TABLE dead_letters ADD COLUMN head_check INTEGER",
    "ALTER TABLE dead_letters ADD COLUMN file TEXT",
    "ALTER TABLE dead_letters ADD COLUMN file_check INTEGER",
    "CREATE INDEX dead_letters_by_file ON dead_letters (file) WHERE file IS NOT NULL",
]
#: the folder of large payloads, next to the database
LETTERS = "letters"
_TEXTS = (
    "delivery_id",
    "message_id",
    "tenant",
    "consumer",
    "topic",
    "original_topic",
    "reason",
    "last_error",
)
_NUMBERS = ("attempts", "first_ms", "last_ms", "payload_bytes")
# A changed bit may make a text invalid, or a number of it: read as bytes, it raises no error.
_AS_TEXT = (*_TEXTS, "headers", "log_topic", "file", "state", "replay")
_SECOND = ("front", "head_check", "file_check")
_AS_NUMBER = (*_NUMBERS, "log_offset", *_SECOND, "fields_check")
_FIELDS = ", ".join(
    ["number"]
    + [f"CAST({name} AS BLOB)" for name in _AS_TEXT]
    + [f"CAST({name} AS INTEGER)" for name in _AS_NUMBER]
)


@dataclass(frozen=True, slots=True)
class Note:
    """A change that is not audited yet."""

    number: int
    content: str


class DeadLetters:
    """The dead letters in a database. Any thread may use it.

    Each method is one transaction, on the disk when it returns. Raises what `Database` raises: LogDamaged,
    LogFull, Closed, InternalError. payloads: the folder of large payloads; default: next to the database.
    """

    def __init__(self, database: Database, payloads: Path | None = None) -> None:
        self._database = database
        self.payloads = LetterPayloads(payloads or database.path.parent / LETTERS)
        database.prepare(STORE, SCHEMA)

    def sweep(self) -> int:
        """At the start: removes payload files without a letter, which a crash left; returns their number."""
        return self.payloads.sweep(self.files())

    # -- adding ------------------------------------------------------------------------------------------

    def add(self, letter: DeadLetter, *, large: PayloadSource | None = None, note: str | None = None) -> bool:
        """Writes a letter; returns False, and changes nothing, if this delivery has a letter already.

        large: yields a payload of `payload_bytes` bytes, which gets a separate file. Raises LogDamaged if it
        yields another number of bytes.
        """
        if large is None:
            return self._add(letter, note)
        if self.has(letter.delivery_id):  # do not write the payload first
            return False
        filed = self.payloads.write(large, letter.payload_bytes)
        added = False
        try:
            added = self._add(replace(letter, payload=filed), note)
        finally:
            if not added:
                self.payloads.remove([filed.name])
        return added

    def _add(self, letter: DeadLetter, note: str | None) -> bool:
        with self._database.transaction() as connection:
            added = insert(connection, letter)
            if added:
                _put_note(connection, note)
        return added

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, delivery_id: str) -> DeadLetter | None:
        """Returns a letter with its payload."""
        found = self._read("delivery_id = ?", [delivery_id], payload=True)
        return found[0] if found else None

    def has(self, delivery_id: str) -> bool:
        """Whether this delivery has a letter."""
        found = "SELECT count(*) FROM dead_letters WHERE delivery_id = ?"
        return _int(self._database.query(found, [delivery_id])[0][0]) > 0

    def named(self, prefix: str) -> list[tuple[str, str]]:
        """Returns (delivery id, message id) of the deliveries whose ids have this prefix."""
        rows = self._database.query(
            "SELECT CAST(delivery_id AS BLOB), CAST(message_id AS BLOB) FROM dead_letters "
            "WHERE substr(delivery_id, 1, ?) = ?",
            [len(prefix), prefix],
        )
        return [(_text(row[0]), _text(row[1])) for row in rows]

    def checked(self, letter: DeadLetter) -> DeadLetter:
        """Returns the letter, marked as damaged if its file is.
        Reads the whole file. Raises InternalError."""
        problem = self.problem(letter)
        return replace(letter, damaged=True) if problem else letter

    def problem(self, letter: DeadLetter) -> str:
        """Returns the damage of a letter that was read with its payload, or "". Reads its whole file."""
        if letter.damaged:
            return "its row is damaged"
        if isinstance(letter.payload, PayloadFile):
            try:
                self.payloads.check(letter.payload, letter.payload_bytes)
            except LogDamaged as error:
                return str(error)
        return ""

    def begin(self, letter: DeadLetter, nbytes: int) -> bytes:
        """Returns the first bytes of a payload, for display; b"" if they cannot be read."""
        if not isinstance(letter.payload, PayloadFile):
            return letter.payload[:nbytes] if isinstance(letter.payload, bytes) else b""
        try:
            return self.payloads.begin(letter.payload, nbytes)
        except LogDamaged:
            return b""

    def files(self) -> set[str]:
        """Returns the names of all letters' files."""
        rows = self._database.query("SELECT CAST(file AS BLOB) FROM dead_letters WHERE file IS NOT NULL")
        return {_text(row[0]) for row in rows}

    def all(self) -> Iterator[DeadLetter]:
        """Yields every letter with its payload, one at a time, so that not all are in memory."""
        number = 0
        while found := self._read("number > ? ORDER BY number LIMIT 1", [number], payload=True):
            yield found[0]
            number = found[0].number

    def find(self, id: str, tenant: str | None = None) -> list[DeadLetter]:
        """Returns the letters of a delivery, or else of a message, with payloads, in order of arrival."""
        for name in ("delivery_id", "message_id"):
            condition, values = Filter(tenant=tenant).where()
            found = self._read(f"{name} = ? AND {condition}", [id, *values], payload=True)
            if found:
                return found
        return []

    def page(self, filter: Filter, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Returns at most `limit` letters numbered above `after`, without payloads, in order of arrival."""
        condition, values = filter.where()
        return self._read(
            f"number > ? AND {condition} ORDER BY number LIMIT ?", [after, *values, limit], payload=False
        )

    def count(self, filter: Filter | None = None) -> int:
        """Returns the number of letters."""
        condition, values = (filter or Filter()).where()
        rows = self._database.query(f"SELECT count(*) FROM dead_letters WHERE {condition}", values)
        return _int(rows[0][0])

    # -- removing ----------------------------------------------------------------------------------------

    def begin_replay(self, delivery_ids: Iterable[str], replay: str) -> None:
        """Marks letters as replaying. replay: the actor and reason, to be read after a crash.
        Raises StateError, and changes nothing, if a letter is gone or is replaying."""
        with self._database.transaction() as connection:
            for delivery_id in delivery_ids:
                changed = connection.execute(
                    "UPDATE dead_letters SET state = ?, replay = ? WHERE delivery_id = ? AND state <> ?",
                    (LetterState.REPLAYING, replay, delivery_id, LetterState.REPLAYING),
                ).rowcount
                if changed != 1:
                    raise StateError(f"the dead letter {delivery_id!r} is gone, or another call replays it")

    def end_replay(self, published: Iterable[str], kept: Mapping[str, LetterState], note: str) -> None:
        """Removes the published letters, and sets the states of the others."""
        files: list[str] = []
        with self._database.transaction() as connection:
            for delivery_id in published:
                files += _remove(connection, delivery_id)
            for delivery_id, state in kept.items():
                connection.execute(
                    "UPDATE dead_letters SET state = ?, replay = '' WHERE delivery_id = ?",
                    (state, delivery_id),
                )
            _put_note(connection, note)
        self.payloads.remove(files)

    def remove(self, delivery_ids: Sequence[str], note: str) -> None:
        """Removes all of the letters, or none: raises StateError if one is gone or is replaying."""
        files: list[str] = []
        with self._database.transaction() as connection:
            for delivery_id in delivery_ids:
                files += _remove(connection, delivery_id, " AND state <> 'replaying'")
            _put_note(connection, note)
        self.payloads.remove(files)

    # -- changes that are not audited yet ----------------------------------------------------------------

    def notes(self) -> list[Note]:
        """Returns the changes that are not audited yet, the oldest first."""
        rows = self._database.query(
            "SELECT number, CAST(content AS BLOB) FROM dead_letter_notes ORDER BY number"
        )
        return [Note(_int(number), _text(content)) for number, content in rows]

    def forget(self, note: Note) -> None:
        """Removes the note of an audited change."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM dead_letter_notes WHERE number = ?", (note.number,))

    def _read(self, condition: str, values: Sequence[Value], *, payload: bool) -> list[DeadLetter]:
        more = "payload, CAST(payload_check AS INTEGER), head" if payload else "NULL, NULL, NULL"
        rows = self._database.query(f"SELECT {_FIELDS}, {more} FROM dead_letters WHERE {condition}", values)
        return [_letter(row) for row in rows]


def insert(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """Writes a letter within the caller's transaction; returns whether it is new. Raises UsageError."""
    if letter.payload is None:
        raise UsageError(f"the payload of {letter.delivery_id!r} was not read")
    inline = letter.payload if isinstance(letter.payload, bytes) else b""
    place = letter.payload if isinstance(letter.payload, Reference) else None
    filed = letter.payload if isinstance(letter.payload, PayloadFile) else None
    nbytes = letter.payload_bytes or len(inline)
    fields: dict[str, Value] = {name: getattr(letter, name) for name in (*_TEXTS, *_NUMBERS)}
    fields |= {
        "original_topic": letter.original_topic or letter.topic,
        "headers": json.dumps(dict(letter.headers), separators=(",", ":")),
        "payload_bytes": nbytes,
        "log_topic": place.topic if place else None,
        "log_offset": place.offset if place else None,
        "file": filed.name if filed else None,
        "file_check": filed.check if filed else None,
        "front": int(letter.front) if letter.front is not None else None,
        "head_check": row_check(letter.head),
    }
    check = _check(fields)
    fields |= {
        "fields_check": check,
        "payload": inline,
        "payload_check": row_check(inline),
        "head": letter.head,
        "state": str(letter.state),
        "replay": letter.replay,
    }
    marks = ", ".join("?" * len(fields))
    statement = f"INSERT INTO dead_letters ({', '.join(fields)}) VALUES ({marks})"
    return (
        connection.execute(
            f"{statement} ON CONFLICT (delivery_id) DO NOTHING", tuple(fields.values())
        ).rowcount
        == 1
    )


def _remove(connection: sqlite3.Connection, delivery_id: str, condition: str = "") -> list[str]:
    """Deletes a letter's row. Returns the names of its files, to be removed after the transaction."""
    found = "SELECT CAST(file AS BLOB) FROM dead_letters WHERE delivery_id = ? AND file IS NOT NULL"
    files = [_text(row[0]) for row in connection.execute(found, (delivery_id,))]
    statement = f"DELETE FROM dead_letters WHERE delivery_id = ?{condition}"
    if connection.execute(statement, (delivery_id,)).rowcount != 1:
        raise StateError(f"the dead letter {delivery_id!r} is gone, or another call replays it")
    return files


def _put_note(connection: sqlite3.Connection, note: str | None) -> None:
    if note:
        connection.execute("INSERT INTO dead_letter_notes (content) VALUES (?)", (note,))


def _letter(row: Sequence[Value]) -> DeadLetter:
    """Returns the letter of a row: `_FIELDS`, then payload, its checksum and head, or three times None."""
    middle = 1 + len(_AS_TEXT)
    texts = {
        name: None if raw is None else _text(raw) for name, raw in zip(_AS_TEXT, row[1:middle], strict=True)
    }
    numbers = dict(zip(_AS_NUMBER, row[middle:-3], strict=True))
    inline, inline_check, head = row[-3:]
    state, replay = texts.pop("state"), texts.pop("replay")
    check = numbers.pop("fields_check")
    damaged = check != _check(texts | numbers) or state not in set(LetterState)
    payload: bytes | Reference | PayloadFile | None = None
    if texts["log_topic"] is not None:
        payload = Reference(texts["log_topic"], _int(numbers["log_offset"]))
    elif texts["file"] is not None:
        payload = PayloadFile(texts["file"], _int(numbers["file_check"]))
    elif inline_check is not None:
        payload = inline if isinstance(inline, bytes) else str(inline).encode()
        damaged = damaged or row_check(inline) != inline_check
    if inline_check is not None:
        damaged = damaged or not _is_head(head, numbers["head_check"])
    front = numbers["front"]
    try:
        headers = json.loads(texts["headers"] or "")
    except ValueError:
        headers = None
    words = {name: texts[name] or "" for name in _TEXTS}
    return DeadLetter(
        delivery_id=words["delivery_id"],
        message_id=words["message_id"],
        consumer=words["consumer"],
        topic=words["topic"],
        reason=words["reason"],
        payload=payload,
        tenant=words["tenant"],
        original_topic=words["original_topic"],
        attempts=_int(numbers["attempts"]),
        last_error=words["last_error"],
        first_ms=_int(numbers["first_ms"]),
        last_ms=_int(numbers["last_ms"]),
        headers=headers if isinstance(headers, dict) else {},
        payload_bytes=_int(numbers["payload_bytes"]),
        front=Front(_int(front)) if front in set(Front) else None,
        head=head if isinstance(head, bytes) else b"",
        state=LetterState.DEAD if damaged else LetterState(state or ""),
        replay=replay or "",
        number=_int(row[0]),
        damaged=damaged,
    )


def _text(raw: Value) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _int(value: Value) -> int:
    return value if isinstance(value, int) else 0


def _check(fields: Mapping[str, Value]) -> int:
    """Returns the checksum over the columns that the schema had when the row was written."""
    first = fields["head_check"] is None
    names = sorted(name for name in fields if not (first and name in (*_SECOND, "file")))
    return row_check(*(fields[name] for name in names))


def _is_head(head: Value, check: Value) -> bool:
    """Whether a head has its checksum. Rows of the first version have no head."""
    return row_check(head) == check if check is not None else head == b""
