"""The store of consumers' sessions, which they may resume after a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from transfer.broker.core.sessions import ConsumerCapabilities, ConsumerKey, Session
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
    """The sessions in a database. Any thread may use it. Changes are on the disk when a method returns.
    Raises what `Database` raises."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.prepare(STORE, SCHEMA)

    def update(self, sessions: Mapping[ConsumerKey, Session | None]) -> None:
        """Replaces these consumers' sessions, all or none. None: the session has ended."""
        rows = [_row_of(session) for session in sessions.values() if session is not None]
        checked = [(*row, row_check(*row)) for row in rows]
        with self._database.transaction() as connection:
            connection.executemany("DELETE FROM sessions WHERE tenant = ? AND consumer_id = ?", [*sessions])
            connection.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", checked)

    def load(self) -> list[Session]:
        """Returns all sessions. Logs and leaves out a damaged one: its consumer must register again."""
        found = []
        query = "SELECT CAST(session_id AS BLOB), CAST(tenant AS BLOB), CAST(consumer_id AS BLOB), "
        for row in self._database.query(query + "CAST(said AS BLOB), row_check FROM sessions"):
            try:
                texts = [bytes(value).decode() for value in row[:4]]  # type: ignore[arg-type]
                if row_check(*texts) != row[4]:
                    raise ValueError("its checksum is wrong")
                found.append(_session(*texts))
            except (ValueError, KeyError, TypeError) as error:
                _log.error("a session is damaged; its consumer must register again: %s", error)
        return found


def _row_of(session: Session) -> tuple[str, str, str, str]:
    abilities = session.capabilities
    content = json.dumps(
        {
            "subscriptions": session.subscriptions,
            "supports_ack": abilities.supports_ack,
            "supports_compression": abilities.supports_compression,
            "supports_codec": abilities.supports_codec,
            "max_inflight": abilities.max_inflight,
        }
    )
    return session.session_id, session.tenant, session.consumer_id, content


def _session(session_id: str, tenant: str, consumer_id: str, content: str) -> Session:
    values = json.loads(content)
    subscriptions = tuple(values.pop("subscriptions"))
    values["supports_codec"] = tuple(values["supports_codec"])
    compression = values["supports_compression"]
    if isinstance(compression, bool):  # an earlier version wrote whether LZ4 is supported
        compression = ("lz4",) if compression else ()
    values["supports_compression"] = tuple(compression)
    return Session(tenant, consumer_id, session_id, None, subscriptions, ConsumerCapabilities(**values))
