"""Attributes that a class has, and no others: `s.rcvtimo = 3` is an error, not a wish that has no effect."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from transfer.transports.errors import NoSuchAttribute

#: how much of a name has to agree with a known one to be that one, misspelt, in a class that users derived
_NEAR = 0.8


class Strict:
    """Refuses public attributes that neither the class has nor `__init__` made. A derived class of the user's
    keeps what it likes, but for names that are nearly one of ours. Private names are free."""

    _complete = False

    if not TYPE_CHECKING:  # a type checker would take it for a class that has any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if self._complete and name[:1] != "_":
                value = self._checked(name, value)
                if name not in self.__dict__ and not hasattr(type(self), name):
                    derived = type(self).__module__.partition(".")[0] != "transfer"
                    if not derived or get_close_matches(name.lower(), self._known_names(), 1, _NEAR):
                        raise self._no_such(name)
            super().__setattr__(name, value)

    def _checked(self, name: str, value: Any) -> Any:
        """The value that a public attribute keeps, if this is one that it can have. Raises ArgumentError."""
        return value

    def _known_names(self) -> Iterable[str]:
        """What a wrong name may have meant."""
        return [name for name in dir(self) if name[:1] != "_"]

    def _no_such(self, name: str) -> NoSuchAttribute:
        """The error for a name that is not known."""
        near = get_close_matches(name.lower(), self._known_names(), 1)
        hint = f"did you mean {near[0]}?" if near else "derive a class to keep attributes of your own"
        return NoSuchAttribute(f"a {type(self).__name__} has no attribute {name}", hint=hint)
