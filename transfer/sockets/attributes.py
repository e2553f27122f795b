"""Rejects unknown attributes: `s.rcvtimo = 3` is an error and not a setting without effect."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from transfer.sockets.options import OPTIONS
from transfer.transports.errors import NoSuchAttribute

#: how similar a name must be to a known one to count as misspelt, in a class that users derived
_NEAR = 0.8


def check_name(owner: Any, name: str) -> None:
    """Rejects a public attribute that neither the class defines nor `__init__` set. Raises NoSuchAttribute.

    A class that a user derives may have further attributes, unless a name is nearly one of ours.
    """
    if name in owner.__dict__ or hasattr(type(owner), name):
        return
    derived = type(owner).__module__.partition(".")[0] != "transfer"
    if not derived or get_close_matches(name.lower(), _names_of(owner), 1, _NEAR):
        raise no_such(owner, name)


def no_such(owner: Any, name: str, more: Iterable[str] = ()) -> NoSuchAttribute:
    """The error for an unknown name. more: names that it may have meant, besides the owner's."""
    near = get_close_matches(name.lower(), [*_names_of(owner), *more], 1)
    hint = f"did you mean {near[0]}?" if near else "derive a class to keep attributes of your own"
    if name.lower() in OPTIONS and not hasattr(type(owner), name.lower()):
        hint = f"it is an option of sockets: socket(transfer.PUSH, {name.lower()}=...)"
    return NoSuchAttribute(f"a {type(owner).__name__} has no attribute {name}", hint=hint)


def _names_of(owner: Any) -> list[str]:
    return [name for name in dir(owner) if name[:1] != "_"]
