"""Calls back to an object that do not keep it: who drops a socket ends it, whatever waits for its streams."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(owner: object, method: str, *arguments: Any) -> Callable[..., None]:
    """Calls the method of `owner`, with these arguments first, as long as there is the owner."""
    reference = weakref.ref(owner)

    def call(*more: Any) -> None:
        there = reference()
        if there is not None:
            getattr(there, method)(*arguments, *more)

    return call


def nothing() -> None:
    """Stands for the reference to an owner where there is none."""
