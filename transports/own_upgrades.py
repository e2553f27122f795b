"""Transports of other distributions that a connection changes to after the hello: entry points of the group
`transfer.upgrades`, each named like its transport and pointing to a class derived from `upgrade.Upgrade`."""

from __future__ import annotations

import functools
import importlib
from importlib import metadata
from typing import TYPE_CHECKING

from transports.address import UPGRADE_POINTS
from transports.forking import undivided

if TYPE_CHECKING:
    from transports.upgrade import Upgrade


@functools.cache
def names() -> tuple[str, ...]:
    """Those that are installed, in the order of their names."""
    return tuple(sorted({point.name for point in metadata.entry_points(group=UPGRADE_POINTS)}))


def load(name: str) -> type[Upgrade]:
    """The class of one of them. Raises TypeError for anything else, and what its module raises."""
    with undivided():
        base = importlib.import_module("transports.upgrade").Upgrade
        [found, *_] = (point.load() for point in metadata.entry_points(group=UPGRADE_POINTS, name=name))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(f"what is registered for {name} is no transports.upgrade.Upgrade: {found!r}")
    return found
