"""The dispatcher's view of the routes, with the routes of its sessions. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from transfer.broker.core.routes import Route, RouteTable
from transfer.broker.core.sessions import Session
from transfer.broker.core.subscriptions import Most, TopicSubscriptions
from transfer.broker.core.topic_patterns import Kind, pattern


class TableRoutes:
    """The routes of direct delivery: those of a table, to which sessions add theirs. Not thread-safe."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    def destinations(self, tenant: str, topic: str) -> list[str]:
        """Returns the consumers that direct routes name for this topic, in order of precedence, each once."""
        routes = self._table.direct_all(tenant, topic)
        if len(routes) < 2:
            return [route.destination for route in routes]
        return list(dict.fromkeys(route.destination for route in routes))

    def check(self, tenant: str, subscriptions: Sequence[str]) -> None:
        """Raises UsageError for subscriptions that cannot be a consumer's routes, or are too many."""
        routes = self._table.patterns(tenant)
        wanted = TopicSubscriptions(Most())
        for text in subscriptions:
            wanted.add(pattern(Kind.DOTS, text), routes)

    def bind(self, session: Session) -> None:
        """Makes the session's subscriptions routes to its consumer, in place of its earlier ones."""
        self.unbind(session)
        for number, text in enumerate(session.subscriptions):
            route = Route(
                id=f"session/{session.session_id}/{number}",
                tenant=session.tenant,
                pattern=pattern(Kind.DOTS, text),
                destination=session.consumer_id,
                session=session.session_id,
            )
            self._table.add(route)

    def unbind(self, session: Session) -> None:
        """Removes the session's routes."""
        self._table.remove_session(session.session_id)
