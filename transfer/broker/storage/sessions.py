"""Sessions of consumers that may be resumed after a restart, in the database."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from transfer.broker.core.sessions import Capabilities, ConsumerKey, Session
from transfer.broker.storage.database import Database, row_check

_log = logging.getLogger("transfer.broker")
STORE = "sessions"
SCHEMA = [
    """
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        consumer_id TEXT NOT NULL,
        said TEXT NOT NULL,
        row_check INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE INDEX sessions_by_consumer ON sessions (tenant, consumer_id)",
]


class Sessions:
    """The sessions in a database. Any thread may use it; what a method did is on the disk when it returns.
    Raises what `Database` raises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.prepare(STORE, SCHEMA)

    def update(self, sessions: Mapping[ConsumerKey, Session | None]) -> None:
        """The session of each of these consumers, as it is now; None: it has ended. All of them or none."""
        rows = [_row_of(session) for session in sessions.values() if session is not None]
        checked = [(*row, row_check(*row)) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM sessions WHERE tenant = ? AND consumer_id = ?", [*sessions])
            connection.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", checked)

    def load(self) -> list[Session]:
        """All of them; one that is damaged is told, and left out: its consumer registers anew."""
        found = []
        query = "SELECT CAST(session_id AS BLOB), CAST(tenant AS BLOB), CAST(consumer_id AS BLOB), "
        for row in self._database.query(query + "CAST(said AS BLOB), row_check FROM sessions"):
            try:
                texts = [bytes(value).decode() for value in row[:4]]  # type: ignore[arg-type]
                if row_check(*texts) != row[4]:
                    raise ValueError("its checksum is wrong")
                found.append(_session(*texts))
            except (ValueError, KeyError, TypeError) as error:
                _log.error("a session is damaged, and its consumer has to register again: %s", error)
        return found


def _row_of(session: Session) -> tuple[str, str, str, str]:
    abilities = session.capabilities
    said = json.dumps(
        {
            "subscriptions": session.subscriptions,
            "supports_ack": abilities.supports_ack,
            "supports_compression": abilities.supports_compression,
            "supports_codec": abilities.supports_codec,
            "max_inflight": abilities.max_inflight,
        }
    )
    return session.session_id, session.tenant, session.consumer_id, said


def _session(session_id: str, tenant: str, consumer_id: str, said: str) -> Session:
    words = json.loads(said)
    subscriptions = tuple(words.pop("subscriptions"))
    words["supports_codec"] = tuple(words["supports_codec"])
    packed = words["supports_compression"]
    if isinstance(packed, bool):  # of an earlier version: whether by LZ4
        packed = ("lz4",) if packed else ()
    words["supports_compression"] = tuple(packed)
    return Session(tenant, consumer_id, session_id, None, subscriptions, Capabilities(**words))
