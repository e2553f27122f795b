"""Writes the sessions of direct delivery asynchronously: each consumer's latest, many per transaction."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.broker.core.sessions import ConsumerKey, Session
    from transfer.broker.storage.database_thread import DatabaseThread
    from transfer.broker.storage.sessions import Sessions
    from transfer.transports.errors import TransferError

_log = logging.getLogger("transfer.broker")
#: most sessions of one transaction: dead letters and the audit wait for it on the same thread
_BATCH = 500


class SessionWriter:
    """Queues at most one session of each consumer for the database. Used on the broker's loop."""

    def __init__(self, thread: DatabaseThread, sessions: Sessions) -> None:
        self._thread = thread
        self._sessions = sessions
        self._waiting: dict[ConsumerKey, Session | None] = {}
        self._writing = False

    def keep(self, session: Session) -> None:
        """Queues the consumer's current session."""
        self._waiting[session.key] = session
        self._write_next()

    def remove(self, session: Session) -> None:
        """Queues the removal of an ended session."""
        self._waiting[session.key] = None
        self._write_next()

    def close(self) -> None:
        """Passes all queued sessions to the thread. Idempotent."""
        while self._waiting:
            self._thread.do(self._take())

    def _write_next(self) -> None:
        if self._waiting and not self._writing:
            self._writing = True
            self._thread.do(self._take(), self._written)

    def _take(self) -> partial[None]:
        taken = {consumer: self._waiting.pop(consumer) for consumer in list(islice(self._waiting, _BATCH))}
        return partial(self._sessions.update, taken)

    def _written(self, error: TransferError | None) -> None:
        if error is not None:
            _log.error(
                "sessions cannot be stored; their consumers must register again after a restart: %s", error
            )
        self._writing = False
        self._write_next()
