"""Sends short answers to requests: at once, or when the log has committed what they report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfer.log.group_committer import GroupCommitter
from transfer.spool.format.protocol import Ask
from transfer.spool.server.reader import PendingAnswer

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

#: sends (identity, arrays, metadata); None: the connection is gone
Answer = Callable[[bytes, "Arrays", dict[str, Any]], PendingAnswer | None]


class Responder:
    """Sends short answers. Any thread."""

    def __init__(self, answer: Answer, committer: GroupCommitter) -> None:
        self._answer = answer
        self._committer = committer

    def respond(self, identity: bytes, request: Ask, meta: dict[str, Any]) -> None:
        """Answers now."""
        self._answer(identity, {}, {"id": request.id, **meta})

    def respond_when_committed(
        self, sequence: int, identity: bytes, request: Ask, meta: Callable[[], dict[str, Any]]
    ) -> None:
        """Answers when all records up to this one are on the disk. meta: makes the answer then."""
        self._committer.when_committed(sequence, lambda: self.respond(identity, request, meta()))
