"""The catalog file: static routes as an operator writes them, in TOML or JSON.

    version = 1

    [[routes]]
    id = "orders"                # required, unique
    pattern = "orders.*"         # required
    destination = "worker-1"     # required
    kind = "dots"                # exact, prefix, dots, paths
    type = "direct"              # direct, fanout, bridge, internal, system
    tenant = ""
    priority = 0
    enabled = true
    metadata = {}

The other keys are optional; their defaults are shown above. Unknown keys are refused: a mistyped key would
silently have no effect.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from transfer.broker.core.routes import Route
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.transports.errors import UsageError

_log = logging.getLogger("transfer.broker")
#: version of the file's format
VERSION = 1

#: keys of a route with their defaults, which give their types too; None: required text
_KEYS: Mapping[str, Any] = {
    "id": None,
    "pattern": None,
    "destination": None,
    "kind": "dots",
    "type": "direct",
    "tenant": "",
    "priority": 0,
    "enabled": True,
    "metadata": {},
}
_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "a table", list: "a list"}


class RouteType(Enum):
    """What a route is for. DIRECT: one consumer gets the message. The broker follows no other routes: FANOUT,
    to all consumers; BRIDGE, to another broker; INTERNAL and SYSTEM, to its own parts."""

    DIRECT = "direct"
    FANOUT = "fanout"
    BRIDGE = "bridge"
    INTERNAL = "internal"
    SYSTEM = "system"


T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def read_file(path: Path | str) -> list[Route]:
    """Reads the enabled direct routes of a file, in its order; logs those of other types. A `.json` file is
    read as JSON, any other as TOML.

    Raises UsageError, which names the place of the error: line and column, or `routes[2].pattern`.
    """
    path = Path(path)
    content = _content(path)
    _known(path, "", content, ("version", "routes"))
    version = _typed(path, "version", content.get("version"), int)
    if version != VERSION:
        raise UsageError(f"{path}: version {version}", hint=f"this program reads version {VERSION}")
    places: dict[str, str] = {}
    routes = []
    for number, entry in enumerate(_typed(path, "routes", content.get("routes", []), list)):
        place = f"routes[{number}]"
        route, followed = _route(path, place, _typed(path, place, entry, dict))
        if route.id in places:
            raise UsageError(f"{path}: {place}.id: {places[route.id]} has the id {route.id!r} too")
        places[route.id] = place
        if followed:
            routes.append(route)
    return routes


def _content(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".json":
            return _typed(path, "the file", json.loads(text, object_pairs_hook=_without_doubles), dict)
        return tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # from both parsers, and from UTF-8
        raise UsageError(f"{path}: {error}") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses duplicate keys, as TOML does; JSON would take the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        double = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {double!r} comes twice in an object")
    return found


def _route(path: Path, place: str, entry: dict[str, Any]) -> tuple[Route, bool]:
    """Returns a route, and whether the broker follows it."""
    _known(path, place, entry, _KEYS)
    values = {
        key: _typed(
            path, f"{place}.{key}", entry.get(key, default), str if default is None else type(default)
        )
        for key, default in _KEYS.items()
    }
    kind = _chosen(path, f"{place}.kind", Kind, values["kind"])
    type_ = _chosen(path, f"{place}.type", RouteType, values["type"])
    try:
        wanted = pattern(kind, values["pattern"])
    except UsageError as error:
        raise UsageError(f"{path}: {place}.pattern: {error}") from error
    try:
        route = Route(values["id"], values["tenant"], wanted, values["destination"], values["priority"])
    except UsageError as error:
        raise UsageError(f"{path}: {place}: {error}") from error
    if type_ is not RouteType.DIRECT:
        text = "route %r has type %s, which this broker does not support: subscribe to its topics"
        _log.warning(text, route.id, type_.value)
    return route, values["enabled"] and type_ is RouteType.DIRECT


def _known(
    path: Path, place: str, given: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...]
) -> None:
    for key in given:
        if key not in known:
            where = f"{place}.{key}" if place else key
            raise UsageError(f"{path}: {where}: no such key", hint=f"known are {', '.join(known)}")


def _typed(path: Path, place: str, value: object, wanted: type[T]) -> T:
    # True is an int in Python, but not in the file.
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    if value is None:
        raise UsageError(f"{path}: {place} is missing")
    raise UsageError(f"{path}: {place} is {value!r:.80}", hint=f"it is {_NAMES[wanted]}")


def _chosen(path: Path, place: str, choices: type[E], value: str) -> E:
    try:
        return choices(value)
    except ValueError as error:
        names = ", ".join(str(one.value) for one in choices)
        raise UsageError(f"{path}: {place} is {value!r:.80}", hint=f"one of {names}") from error
