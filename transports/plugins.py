"""Classes that other distributions provide by entry points: transports, upgrades, codecs, compressors."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TypeVar

from transfer.transports.errors import OptionError
from transfer.transports.forking import undivided

_Base = TypeVar("_Base")


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """The names of the entry points in a group, sorted. Cached, because a lookup takes milliseconds."""
    return tuple(sorted({point.name for point in metadata.entry_points(group=group)}))


def load(group: str, name: str, base: type[_Base]) -> type[_Base]:
    """Imports the class of an entry point. Raises OptionError if that fails, or if it does not derive from
    `base`."""
    point = next(iter(metadata.entry_points(group=group, name=name)))
    what = f"{point.value}, the entry point {name} of {group},"
    try:
        with undivided():
            found = point.load()
    except Exception as error:
        hint = "repair or uninstall the distribution that provides it"
        raise OptionError(f"{what} cannot be loaded: {error!r:.200}", hint=hint) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        hint = f"name a class derived from {base.__module__}.{base.__name__}"
        raise OptionError(f"{what} is no {base.__name__}", hint=hint)
    return found
