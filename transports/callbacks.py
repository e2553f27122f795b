"""Callbacks that do not keep their object: dropping a socket ends it, although its streams have callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(owner: object, method: str, *arguments: Any) -> Callable[..., Any]:
    """Returns a function that calls `owner`'s method, with these arguments first, while `owner` exists; then
    it returns None."""
    reference = weakref.ref(owner)

    def call(*more: Any) -> Any:
        there = reference()
        return None if there is None else getattr(there, method)(*arguments, *more)

    return call


def nothing() -> None:
    """Stands for a weak reference to an owner where there is none."""
