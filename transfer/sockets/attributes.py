"""Rejects unknown attributes: `s.rcvtimo = 3` is an error and not a setting without effect."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import NoSuchAttribute

#: how similar a name must be to a known one to count as misspelt, in a class that users derived
_NEAR = 0.8


class Strict:
    """Rejects public attributes that neither the class defines nor `__init__` sets.

    A class that a user derives may have further attributes, unless a name is nearly one of ours. Private
    names are free.
    """

    _complete = False

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if self._complete and name[:1] != "_":
                value = self._checked(name, value)
                if name not in self.__dict__ and not hasattr(type(self), name):
                    derived = type(self).__module__.partition(".")[0] != "transfer"
                    if not derived or get_close_matches(name.lower(), self._known_names(), 1, _NEAR):
                        raise self._no_such(name)
            super().__setattr__(name, value)

    def _checked(self, name: str, value: Any) -> Any:
        """Returns the value that a public attribute keeps. Raises ArgumentError."""
        return value

    def _known_names(self) -> Iterable[str]:
        """Names that a wrong name may have meant."""
        return [name for name in dir(self) if name[:1] != "_"]

    def _no_such(self, name: str) -> NoSuchAttribute:
        """The error for an unknown name."""
        near = get_close_matches(name.lower(), self._known_names(), 1)
        hint = f"did you mean {near[0]}?" if near else "derive a class to keep attributes of your own"
        return NoSuchAttribute(f"a {type(self).__name__} has no attribute {name}", hint=hint)
