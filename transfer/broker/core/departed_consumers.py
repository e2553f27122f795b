"""Subscriptions of consumers that disconnected a moment ago, and may be restarting. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.broker.core.pattern_index import PatternMap
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern

if TYPE_CHECKING:
    from transfer.broker.core.sessions import Session

#: limit on the subscriptions that are remembered
_MOST = 10_000


class DepartedConsumers:
    """Remembers subscriptions of ended sessions. Not thread-safe. grace: seconds for which they are
    remembered; 0: not at all."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._until: dict[tuple[str, TopicPattern], float] = {}  # by tenant and pattern, the oldest first
        self._maps: dict[str, PatternMap[bool]] = {}

    def add(self, session: Session, now: float) -> None:
        """Remembers the subscriptions of a session that has ended."""
        if self._grace <= 0:
            return
        for text in session.subscriptions:
            key = session.tenant, pattern(Kind.DOTS, text)
            self._until.pop(key, None)
            self._until[key] = now + self._grace
            self._maps.setdefault(session.tenant, PatternMap()).put(key[1], True)
        while len(self._until) > _MOST:
            self._forget_oldest()

    def expects(self, tenant: str, topic: str, now: float) -> bool:
        """Returns whether a departed consumer had subscribed to this topic."""
        while self._until and next(iter(self._until.values())) <= now:
            self._forget_oldest()
        return tenant in self._maps and bool(self._maps[tenant].match(topic)[0])

    def _forget_oldest(self) -> None:
        tenant, wanted = key = next(iter(self._until))
        del self._until[key]
        self._maps[tenant].remove(wanted)
        if not len(self._maps[tenant]):
            del self._maps[tenant]
