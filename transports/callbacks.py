"""Callbacks that do not keep their object: dropping a socket ends it, although its streams have callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(owner: object, method: str, *arguments: Any) -> Callable[..., None]:
    """Returns a function that calls `owner`'s method, with these arguments first, while `owner` exists."""
    reference = weakref.ref(owner)

    def call(*more: Any) -> None:
        there = reference()
        if there is not None:
            getattr(there, method)(*arguments, *more)

    return call


def nothing() -> None:
    """Stands for a weak reference to an owner where there is none."""
