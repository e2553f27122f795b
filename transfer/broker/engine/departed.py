"""Subscriptions of consumers that went a moment ago, and may be restarting. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from transfer.broker.engine.grammar import Kind, Pattern, pattern

if TYPE_CHECKING:
    from transfer.broker.engine.sessions import Session

#: sessions that are remembered
_MOST = 1000


class Departed:
    """grace: seconds for which the end of a session is remembered; 0: not at all. Not thread-safe."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._sessions: deque[tuple[float, str, list[Pattern]]] = deque(maxlen=_MOST)

    def add(self, session: Session, now: float) -> None:
        """The session has ended."""
        if self._grace > 0 and session.subscriptions:
            patterns = [pattern(Kind.DOTS, text) for text in session.subscriptions]
            self._sessions.append((now + self._grace, session.tenant, patterns))

    def expects(self, tenant: str, topic: str, now: float) -> bool:
        """Whether one of them had subscribed to this topic."""
        while self._sessions and self._sessions[0][0] <= now:
            self._sessions.popleft()
        return any(
            of_tenant == tenant and any(one.matches(topic) for one in patterns)
            for _, of_tenant, patterns in self._sessions
        )
