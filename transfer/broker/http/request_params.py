"""The members of a request's query or body, each read once and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transfer.broker.storage.audit_chain import Json
from transfer.transports.errors import UsageError


class RequestParams:
    """What a request asks for. Each method takes a member, and raises UsageError if it is another thing.

    `end` refuses what nobody took: a misspelt filter would else find more than was meant.
    """

    def __init__(self, members: Mapping[str, Json]) -> None:
        if len(members) != len(set(members)):
            raise UsageError("something is said twice")
        self._members = dict(members)

    def text(self, name: str) -> str | None:
        """A text; None: it is not there."""
        value = self._members.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} has to be a text")
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{name} is no text: {error}") from error
        return value

    def needed(self, name: str) -> str:
        """A text that has to be there."""
        value = self.text(name)
        if value is None:
            raise UsageError(f"{name} is missing")
        return value

    def texts(self, name: str) -> Sequence[str]:
        """A list of texts that has to be there."""
        value = self._members.pop(name, None)
        if not isinstance(value, list):
            raise UsageError(f"{name} has to be a list of texts")
        return [RequestParams({name: one}).needed(name) for one in value]

    def number(self, name: str, default: int) -> int:
        """A whole number, 0 to 2^53, as a text too."""
        value = self._members.pop(name, None)
        if value is None:
            return default
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 16:
            value = int(value)
        if type(value) is not int or not 0 <= value <= 1 << 53:
            raise UsageError(f"{name} has to be a whole number")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false: it is not there."""
        value = self._members.pop(name, False)
        if not isinstance(value, bool):
            raise UsageError(f"{name} has to be true or false")
        return value

    def members(self, name: str) -> Mapping[str, Json]:
        """An object; an empty one: it is not there."""
        value = self._members.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise UsageError(f"{name} has to be an object")
        return value

    def end(self) -> None:
        """Nothing is left. Raises UsageError."""
        if self._members:
            raise UsageError(f"unknown: {', '.join(sorted(self._members))}")
