"""The store of dead letters: deliveries that were given up, until an operator replays or purges them.

Rows carry checksums: one that is not what was written is told as damaged, and the others are served.

What operators change is noted in the same transaction (`Note`), until the audit has it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transfer.broker.state.database import Database, Value, row_check
from transfer.broker.state.letter import DeadLetter, Filter, Reference, State
from transports.errors import StateError, UsageError

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
]
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
# A changed bit may make a text that is none, or a number of it: read as bytes, nothing raises.
_AS_TEXT = (*_TEXTS, "headers", "log_topic", "state", "replay")
_AS_NUMBER = (*_NUMBERS, "log_offset", "fields_check")
_FIELDS = ", ".join(
    ["number"]
    + [f"CAST({name} AS BLOB)" for name in _AS_TEXT]
    + [f"CAST({name} AS INTEGER)" for name in _AS_NUMBER]
)


@dataclass(frozen=True, slots=True)
class Note:
    """What was done and is not audited yet."""

    number: int
    content: str


class DeadLetters:
    """The letters in a database. Any thread may use it. Each method is one transaction, on the disk when
    it returns. Raises what `Database` raises: LogDamaged, LogFull, Closed, InternalError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.prepare(STORE, SCHEMA)

    # -- letters come ------------------------------------------------------------------------------------

    def add(self, letter: DeadLetter, *, note: str | None = None) -> bool:
        """Keeps a letter; False if this delivery is there already, and nothing was changed."""
        with self._database.transaction() as connection:
            added = insert(connection, letter)
            if added:
                _put_note(connection, note)
        return added

    # -- letters are read --------------------------------------------------------------------------------

    def get(self, delivery_id: str) -> DeadLetter | None:
        """A letter with its payload."""
        found = self._read("delivery_id = ?", [delivery_id], payload=True)
        return found[0] if found else None

    def find(self, id: str, tenant: str | None = None) -> list[DeadLetter]:
        """The letters of a delivery, or else of a message, with their payloads, in order of arrival."""
        for name in ("delivery_id", "message_id"):
            condition, values = Filter(tenant=tenant).where()
            found = self._read(f"{name} = ? AND {condition}", [id, *values], payload=True)
            if found:
                return found
        return []

    def page(self, asked: Filter, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """At most `limit` letters with numbers above `after`, without payloads, in order of arrival."""
        condition, values = asked.where()
        return self._read(
            f"number > ? AND {condition} ORDER BY number LIMIT ?", [after, *values, limit], payload=False
        )

    def count(self, asked: Filter | None = None) -> int:
        """How many there are."""
        condition, values = (asked or Filter()).where()
        rows = self._database.query(f"SELECT count(*) FROM dead_letters WHERE {condition}", values)
        return _int(rows[0][0])

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many there are of each (tenant, topic, consumer)."""
        names = "CAST(tenant AS BLOB), CAST(topic AS BLOB), CAST(consumer AS BLOB)"
        rows = self._database.query(
            f"SELECT {names}, count(*) FROM dead_letters GROUP BY tenant, topic, consumer"
        )
        return {(_text(row[0]), _text(row[1]), _text(row[2])): _int(row[3]) for row in rows}

    # -- letters go --------------------------------------------------------------------------------------

    def begin_replay(self, delivery_ids: Iterable[str], replay: str) -> None:
        """They are replaying from now on. replay: who and why, for after a crash. Raises StateError, and
        changes nothing, if one is gone or is replaying."""
        with self._database.transaction() as connection:
            for delivery_id in delivery_ids:
                changed = connection.execute(
                    "UPDATE dead_letters SET state = ?, replay = ? WHERE delivery_id = ? AND state <> ?",
                    (State.REPLAYING, replay, delivery_id, State.REPLAYING),
                ).rowcount
                if changed != 1:
                    raise StateError(f"the dead letter {delivery_id!r} is gone, or is replayed by another")

    def end_replay(self, published: Iterable[str], kept: Mapping[str, State], note: str) -> None:
        """Those that were published go; the others are what they were before."""
        with self._database.transaction() as connection:
            for delivery_id in published:
                _remove(connection, delivery_id)
            for delivery_id, state in kept.items():
                connection.execute(
                    "UPDATE dead_letters SET state = ?, replay = '' WHERE delivery_id = ?",
                    (state, delivery_id),
                )
            _put_note(connection, note)

    def remove(self, delivery_ids: Sequence[str], note: str) -> None:
        """All of them go, or none: StateError if one is gone already or is replaying."""
        with self._database.transaction() as connection:
            for delivery_id in delivery_ids:
                _remove(connection, delivery_id, " AND state <> 'replaying'")
            _put_note(connection, note)

    # -- what the audit has not yet ----------------------------------------------------------------------

    def notes(self) -> list[Note]:
        """What was done and is not audited, the oldest first."""
        rows = self._database.query(
            "SELECT number, CAST(content AS BLOB) FROM dead_letter_notes ORDER BY number"
        )
        return [Note(_int(number), _text(content)) for number, content in rows]

    def forget(self, note: Note) -> None:
        """The audit has it."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM dead_letter_notes WHERE number = ?", (note.number,))

    def _read(self, condition: str, values: Sequence[Value], *, payload: bool) -> list[DeadLetter]:
        more = "payload, CAST(payload_check AS INTEGER)" if payload else "NULL, NULL"
        rows = self._database.query(f"SELECT {_FIELDS}, {more} FROM dead_letters WHERE {condition}", values)
        return [_letter(row) for row in rows]


def insert(connection: sqlite3.Connection, letter: DeadLetter) -> bool:
    """`DeadLetters.add` within a transaction that does more. Raises UsageError."""
    if letter.payload is None:
        raise UsageError(f"the payload of {letter.delivery_id!r} was not read")
    inline = letter.payload if isinstance(letter.payload, bytes) else b""
    place = letter.payload if isinstance(letter.payload, Reference) else None
    nbytes = len(inline) if place is None else letter.payload_bytes
    fields: dict[str, Value] = {name: getattr(letter, name) for name in (*_TEXTS, *_NUMBERS)}
    fields |= {
        "original_topic": letter.original_topic or letter.topic,
        "headers": json.dumps(dict(letter.headers), separators=(",", ":")),
        "payload_bytes": nbytes,
        "log_topic": place.topic if place else None,
        "log_offset": place.offset if place else None,
    }
    check = _check(fields)
    fields |= {
        "fields_check": check,
        "payload": inline,
        "payload_check": row_check(inline),
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


def _remove(connection: sqlite3.Connection, delivery_id: str, condition: str = "") -> None:
    statement = f"DELETE FROM dead_letters WHERE delivery_id = ?{condition}"
    if connection.execute(statement, (delivery_id,)).rowcount != 1:
        raise StateError(f"the dead letter {delivery_id!r} is gone, or is replayed by another")


def _put_note(connection: sqlite3.Connection, note: str | None) -> None:
    if note:
        connection.execute("INSERT INTO dead_letter_notes (content) VALUES (?)", (note,))


def _letter(row: Sequence[Value]) -> DeadLetter:
    """A row of `_FIELDS`, its payload and the payload's checksum, or two None."""
    middle = 1 + len(_AS_TEXT)
    texts = {
        name: None if raw is None else _text(raw) for name, raw in zip(_AS_TEXT, row[1:middle], strict=True)
    }
    numbers = dict(zip(_AS_NUMBER, row[middle:-2], strict=True))
    inline, inline_check = row[-2:]
    state, replay = texts.pop("state"), texts.pop("replay")
    check = numbers.pop("fields_check")
    damaged = check != _check(texts | numbers) or state not in set(State)
    payload: bytes | Reference | None = None
    if texts["log_topic"] is not None:
        payload = Reference(texts["log_topic"], _int(numbers["log_offset"]))
    elif inline_check is not None:
        payload = inline if isinstance(inline, bytes) else str(inline).encode()
        damaged = damaged or row_check(inline) != inline_check
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
        state=State.DEAD if damaged else State(state or ""),
        replay=replay or "",
        number=_int(row[0]),
        damaged=damaged,
    )


def _text(raw: Value) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _int(value: Value) -> int:
    return value if isinstance(value, int) else 0


def _check(fields: Mapping[str, Value]) -> int:
    return row_check(*(fields[name] for name in sorted(fields)))
