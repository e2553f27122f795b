"""A part of an object that is made when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class made_once(Generic[T]):  # noqa: N801 - a decorator
    """As `functools.cached_property`, without its lock: one for all objects (Python 3.11), which a fork may
    copy while it is held. Two threads may both make the part, and get the same one: making it has no effect.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, owner: Any, kind: type) -> T:
        made: T = owner.__dict__.setdefault(self._name, self._make(owner))
        return made
