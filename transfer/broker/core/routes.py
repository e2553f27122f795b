"""Routes of direct delivery by tenant and topic, and their order of precedence. Pure.

The precedence is the same for the same routes: patterns without wildcards, then those with `*`, then those
with `>` and prefixes; among these the higher priority; then the route that was added first. Tenants never get
each other's routes; "" is the tenant of clients that name none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transfer.broker.core.pattern_index import PatternMap
from transfer.broker.core.topic_patterns import TopicPattern, check_text
from transfer.transports.errors import UsageError

#: priorities are below this, and above its negative
MAX_PRIORITY = 1 << 31


@dataclass(frozen=True, slots=True)
class Route:
    """Sends messages on the pattern's topics to one consumer. Raises UsageError for values out of range.

    id: unique in a table. tenant: "" for none. destination: the consumer's name. priority: the higher goes
    first. session: the session that made it, and with which it ends; "": the catalog file. Names are 1 to 255
    bytes.
    """

    id: str
    tenant: str
    pattern: TopicPattern
    destination: str
    priority: int = 0
    session: str = ""

    def __post_init__(self) -> None:
        check_text(self.id, f"a route's id {self.id!r:.80}")
        check_text(self.destination, f"the destination {self.destination!r:.80}")
        if self.tenant:
            check_text(self.tenant, f"the tenant {self.tenant!r:.80}")
        if self.session:
            check_text(self.session, f"the session {self.session!r:.80}")
        if not -MAX_PRIORITY < self.priority < MAX_PRIORITY:
            raise UsageError(f"route {self.id!r}: priority {self.priority}", hint="31 bits and a sign")


#: the routes of one pattern: a single one stands for itself, several are sorted
_PatternRoutes = Route | list[Route]


class RouteTable:
    """All routes of the broker. Not thread-safe.

    `version` rises with each change: results are valid until then. A lookup costs that of
    `pattern_index.PatternMap` and the routes that it returns. A route takes 0.5 to 0.8 KB.
    """

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        # By id, in the order in which routes were added. Apart from the routes, not in them: a lookup among a
        # million waits mostly for memory, and needs these only where several routes match.
        self._numbers: dict[str, int] = {}
        self._maps: dict[str, PatternMap[_PatternRoutes]] = {}
        self._sessions: dict[str, dict[str, None]] = {}
        self._next = 0
        self.version = 0

    def __len__(self) -> int:
        return len(self._routes)

    def __iter__(self) -> Iterator[Route]:
        """Iterates over all routes in the order in which they were added."""
        return iter(sorted(self._routes.values(), key=lambda route: self._numbers[route.id]))

    def add(self, route: Route) -> None:
        """Adds a route. It replaces one of the same id and takes over its place in the order."""
        if route.id in self._routes:
            self._take(route.id)
        else:
            self._numbers[route.id] = self._next
            self._next += 1
        self._routes[route.id] = route
        if route.session:
            self._sessions.setdefault(route.session, {})[route.id] = None
        self._add_to_patterns(route)
        self.version += 1

    def remove(self, id: str) -> Route | None:
        """Removes a route and returns it; None if there is none."""
        if id not in self._routes:
            return None
        route = self._take(id)
        del self._numbers[id]
        self.version += 1
        return route

    def remove_session(self, session: str) -> list[Route]:
        """Removes all routes that are bound to a session, and returns them."""
        return [route for id in list(self._sessions.get(session, ())) if (route := self.remove(id))]

    def direct_all(self, tenant: str, topic: str) -> list[Route]:
        """Returns all routes that a message could take, in order of precedence."""
        patterns = self._maps.get(tenant)
        if patterns is None:
            return []
        ones: list[_PatternRoutes] = []
        rests: list[_PatternRoutes] = []
        patterns.wild(topic, ones, rests)
        found: list[Route] = []
        for entries in (patterns.exact(topic), ones, rests):
            routes = [route for entry in entries for route in _all(entry)]
            if len(entries) > 1:
                routes.sort(key=self._order)
            found += routes
        return found

    def patterns(self, tenant: str) -> PatternMap[Any]:
        """Returns the patterns of a tenant's routes; the caller must not change them."""
        return self._maps.get(tenant) or PatternMap()

    def steps(self, tenant: str, topic: str) -> int:
        """Returns the number of steps of a lookup, for tests and measurements."""
        patterns = self._maps.get(tenant)
        return patterns.match(topic)[1] if patterns else 0

    def _order(self, route: Route) -> tuple[int, int]:
        """Returns the sort key of routes whose patterns have one rank; it is unique."""
        return -route.priority, self._numbers[route.id]

    def _take(self, id: str) -> Route:
        """Removes a route from all lookups; its number stays."""
        route = self._routes.pop(id)
        if route.session:
            bound = self._sessions[route.session]
            del bound[id]
            if not bound:
                del self._sessions[route.session]
        self._remove_from_patterns(route)
        return route

    def _add_to_patterns(self, route: Route) -> None:
        patterns = self._maps.get(route.tenant)
        if patterns is None:
            patterns = self._maps[route.tenant] = PatternMap()
        present = patterns.get(route.pattern)
        if present is None:
            patterns.put(route.pattern, route)
        elif isinstance(present, Route):
            patterns.put(route.pattern, sorted((present, route), key=self._order))
        else:
            insort(present, route, key=self._order)

    def _remove_from_patterns(self, route: Route) -> None:
        patterns = self._maps[route.tenant]
        present = patterns.get(route.pattern)
        if isinstance(present, list) and len(present) > 1:
            del present[bisect_left(present, self._order(route), key=self._order)]
            return
        patterns.remove(route.pattern)
        if not len(patterns):
            del self._maps[route.tenant]


def _all(present: _PatternRoutes) -> Sequence[Route]:
    return (present,) if isinstance(present, Route) else present
