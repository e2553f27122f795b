"""Routes that survive a restart: static ones from the catalog file, dynamic ones from operators.

Each change increments the catalog's version, in the same transaction. Routes keep the order in which they
were added, as in a `RouteTable`, so both choose the same route after a restart.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from transfer.broker.core.routes import Route, RouteSource, RouteType
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.storage.database import Database, Value, row_check
from transfer.transports.errors import UsageError

SCHEMA = [
    """
    CREATE TABLE catalog (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        version INTEGER NOT NULL,
        row_check INTEGER NOT NULL
    )
    """,
    f"INSERT INTO catalog VALUES (1, 0, {row_check(0)})",
    # The number is SQLite's row id, so reading the routes in order needs no index.
    """
    CREATE TABLE routes (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        kind TEXT NOT NULL,
        pattern TEXT NOT NULL,
        type TEXT NOT NULL,
        destination TEXT NOT NULL,
        priority INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        enabled INTEGER NOT NULL,
        source TEXT NOT NULL,
        row_check INTEGER NOT NULL
    )
    """,
]


class CatalogChanges(NamedTuple):
    """The effect of a new set of static routes: the catalog's version, new or changed routes, removed ids."""

    version: int
    put: list[Route]
    removed: list[str]


class Catalog:
    """The routes in the database. As thread-safe as that; raises what its transactions raise.

    problems: damage that the last `load` found: rows it left out, or a version it cannot trust.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.problems: list[str] = []
        database.prepare("catalog", SCHEMA)

    def load(self) -> tuple[int, list[Route]]:
        """Returns the version and all routes in order.

        Leaves out damaged rows and lists them in `problems`.
        """
        with self._database.transaction() as connection:
            version, check = _version_row(connection)
            rows = connection.execute("SELECT * FROM routes ORDER BY number").fetchall()
        self.problems = [] if check == row_check(version) else ["the catalog's version is damaged"]
        routes = []
        for row in rows:
            if _is_whole(row):
                routes.append(_route(row))
            else:
                self.problems.append(f"route {row[1]!r} (number {row[0]}) is damaged")
        return version, routes

    def put(self, route: Route) -> int:
        """Adds a route, or replaces the one with its id, which keeps its place; returns the version.

        Raises UsageError for a route that is bound to a session (it ends with the session), or for metadata
        that are not JSON.
        """
        values = _values(route)
        with self._database.transaction() as connection:
            return _rise(connection) if _write(connection, values) else _version_row(connection)[0]

    def remove(self, id: str) -> int:
        """Removes the route with this id, if there is one; returns the version."""
        with self._database.transaction() as connection:
            gone = connection.execute("DELETE FROM routes WHERE id = ?", (id,)).rowcount
            return _rise(connection) if gone else _version_row(connection)[0]

    def replace_static(self, routes: Iterable[Route]) -> CatalogChanges:
        """Replaces all static routes in one change; unchanged routes keep their place.

        Raises UsageError for a route that is not static, a duplicate id, or the id of a dynamic route.
        """
        wanted: dict[str, tuple[Route, tuple[Value, ...]]] = {}
        for route in routes:
            if route.source is not RouteSource.STATIC:
                raise UsageError(f"route {route.id!r} is {route.source.value}, not static")
            if route.id in wanted:
                raise UsageError(f"two routes have the id {route.id!r}")
            wanted[route.id] = (route, _values(route))
        with self._database.transaction() as connection:
            existing = connection.execute("SELECT id, source FROM routes").fetchall()
            for id, source in existing:
                if id in wanted and source != RouteSource.STATIC.value:
                    raise UsageError(
                        f"the id {id!r} belongs to a {source} route", hint="give the static route another id"
                    )
            removed = [
                id for id, source in existing if source == RouteSource.STATIC.value and id not in wanted
            ]
            connection.executemany("DELETE FROM routes WHERE id = ?", [(id,) for id in removed])
            put = [route for route, values in wanted.values() if _write(connection, values)]
            version = _rise(connection) if put or removed else _version_row(connection)[0]
        return CatalogChanges(version, put, removed)

    def drop_damaged(self) -> int:
        """Removes the damaged rows, which `load` leaves out; returns the version."""
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT * FROM routes").fetchall()
            damaged = [(row[0],) for row in rows if not _is_whole(row)]
            connection.executemany("DELETE FROM routes WHERE number = ?", damaged)
            return _rise(connection) if damaged else _version_row(connection)[0]


def _version_row(connection: sqlite3.Connection) -> tuple[int, int]:
    """Returns the version and its stored checksum."""
    row = connection.execute("SELECT version, row_check FROM catalog").fetchone()
    return (row[0], row[1]) if row and isinstance(row[0], int) else (0, -1)


def _rise(connection: sqlite3.Connection) -> int:
    version = _version_row(connection)[0] + 1
    connection.execute("INSERT OR REPLACE INTO catalog VALUES (1, ?, ?)", (version, row_check(version)))
    return version


def _write(connection: sqlite3.Connection, values: tuple[Value, ...]) -> bool:
    """Writes a route's row; returns False if it is unchanged. values: without the number."""
    old = connection.execute("SELECT * FROM routes WHERE id = ?", (values[0],)).fetchone()
    if old is not None and _is_whole(old) and old[1:-1] == values:
        return False
    if old is None:
        row = connection.execute("SELECT coalesce(max(number), -1) + 1 FROM routes").fetchone()
        number = int(row[0])
    else:
        number = int(old[0])
    connection.execute(
        "INSERT OR REPLACE INTO routes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, *values, row_check(number, *values)),
    )
    return True


def _values(route: Route) -> tuple[Value, ...]:
    if route.source is RouteSource.SESSION:
        raise UsageError(f"route {route.id!r} is bound to a session and cannot be stored")
    return (
        route.id,
        route.tenant,
        route.pattern.kind.value,
        route.pattern.text,
        route.type.value,
        route.destination,
        route.priority,
        _metadata_text(route.id, route.metadata),
        int(route.enabled),
        route.source.value,
    )


def _metadata_text(id: str, metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata), sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"route {id!r}: metadata are not JSON: {error}") from error


def _is_whole(row: tuple[Any, ...]) -> bool:
    return bool(row[-1] == row_check(*row[:-1]))


def _route(row: tuple[Any, ...]) -> Route:
    """Returns the route of an undamaged row."""
    _, id, tenant, kind, text, type, destination, priority, metadata, enabled, source, _ = row
    return Route(
        id,
        tenant,
        pattern(Kind(kind), text),
        RouteType(type),
        destination,
        priority,
        json.loads(metadata),
        bool(enabled),
        RouteSource(source),
    )
