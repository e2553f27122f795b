"""The broker's own audit events, written on the database thread."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transfer.broker.storage.audit_chain import Action

if TYPE_CHECKING:
    from transfer.broker.storage.audit import Audit
    from transfer.broker.storage.database_thread import DatabaseThread
    from transfer.transports.errors import TransferError

_log = logging.getLogger("transfer.broker")
#: most events that wait to be audited; more are only counted (`not_audited`)
_MAX_WAITING = 1000
#: most messages that one event names
_NAMED = 100


class AuditWriter:
    """Appends events to the audit without blocking the broker's loop. Used on that loop."""

    def __init__(self, thread: DatabaseThread, audit: Audit, counts: Counter[str]) -> None:
        self._thread = thread
        self._audit = audit
        self._counts = counts
        self._waiting = 0

    def stale_acks(self, topic: str, group: str, consumer: str, offsets: Sequence[int]) -> None:
        """Audits refused acknowledgements: the messages were not, or no longer, the consumer's."""
        text = f"{len(offsets)} of topic {topic!r} in group {group!r} are not the consumer's, or not any more"
        self.record(consumer, "stale_ack", [f"{topic}/{offset}" for offset in offsets[:_NAMED]], text)

    def group_expired(self, topic: str, group: str, idle: float) -> None:
        """Audits that the broker removed a group which had no consumer for too long."""
        self.record("broker", "group_expired", (), f"group {group!r} of topic {topic!r}: {idle:.0f} s")

    def record(self, actor: str, operation: str, message_ids: Sequence[str], text: str) -> None:
        """Queues an event for the audit; drops and counts it if too many wait."""
        if self._waiting >= _MAX_WAITING:
            self._counts["not_audited"] += 1
            return
        self._waiting += 1
        now_ms = time.time_ns() // 1_000_000
        event = Action(actor, operation, tuple(message_ids), text)

        def done(error: TransferError | None) -> None:
            self._waiting -= 1
            if error is not None:
                self._counts["not_audited"] += 1
                _log.error("an event cannot be audited: %s", error)

        self._thread.do(lambda: self._audit.append(event, now_ms), done)
