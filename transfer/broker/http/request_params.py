"""Reads and checks the members of a request's query or body. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transfer.broker.storage.audit_chain import Json
from transfer.transports.errors import UsageError


class RequestParams:
    """The members of a request. Each method takes one member, and raises UsageError if its type is wrong.

    `end` refuses members that no method took: with a misspelt filter a request would match too much.
    """

    def __init__(self, members: Mapping[str, Json]) -> None:
        if len(members) != len(set(members)):
            raise UsageError("a member is given twice")
        self._members = dict(members)

    def text(self, name: str) -> str | None:
        """Returns a text; None if it is missing."""
        value = self._members.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} has to be a text")
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{name} is no text: {error}") from error
        return value

    def needed(self, name: str) -> str:
        """Returns a required text."""
        value = self.text(name)
        if value is None:
            raise UsageError(f"{name} is missing")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """Returns a required list of texts."""
        value = self._members.pop(name, None)
        if not isinstance(value, list):
            raise UsageError(f"{name} has to be a list of texts")
        return [RequestParams({name: one}).needed(name) for one in value]

    def number(self, name: str, default: int) -> int:
        """Returns an integer from 0 to 2^53, which may be written as a text."""
        value = self._members.pop(name, None)
        if value is None:
            return default
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 16:
            value = int(value)
        if type(value) is not int or not 0 <= value <= 1 << 53:
            raise UsageError(f"{name} has to be a whole number")
        return value

    def flag(self, name: str) -> bool:
        """Returns true or false; false if it is missing."""
        value = self._members.pop(name, False)
        if not isinstance(value, bool):
            raise UsageError(f"{name} has to be true or false")
        return value

    def members(self, name: str) -> Mapping[str, Json]:
        """Returns an object; an empty one if it is missing."""
        value = self._members.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise UsageError(f"{name} has to be an object")
        return value

    def end(self) -> None:
        """Raises UsageError if a member is left."""
        if self._members:
            raise UsageError(f"unknown: {', '.join(sorted(self._members))}")
