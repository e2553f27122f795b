"""How far a program publishes ahead of the broker's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transfer.broker.clients.native_errors import held_up
from transfer.broker.clients.native_upload import size_of
from transfer.transports.errors import Again, TransferError

#: messages without an answer, and bytes, behind which answers are heard while more are published
_HEAR_EVERY, _HEAR_BYTES = 512, 4 << 20
#: bytes that are published ahead while the broker holds others up
_AHEAD = 16 << 20
#: seconds until what the broker had no room for is published again
TRY_AGAIN = 0.2


class PublishWindow:
    """Used with the client's lock. held_up: why the broker does not answer what was published."""

    def __init__(self) -> None:
        self.answered()

    def answered(self) -> None:
        """The broker has kept something, or the connection has ended."""
        self.held_up: TransferError | None = None
        self.begin()

    def begin(self) -> None:
        """It counts anew."""
        self._ahead = self._heard_at = 0  # bytes published, and when answers were heard

    @property
    def is_full(self) -> bool:
        """Whether nothing more is published before the broker answers."""
        return self.held_up is not None and self._ahead > _AHEAD

    def add(self, parts: Sequence[Any], unanswered: int) -> bool:
        """A message was published. Whether answers are to be heard now."""
        self._ahead += sum(map(size_of, parts))
        if unanswered < _HEAR_EVERY and self._ahead - self._heard_at <= _HEAR_BYTES:
            return False
        self._heard_at = self._ahead
        return True

    def late(self, what: str, *, publishes: bool) -> TransferError:
        """What a program hears whose time is over."""
        if publishes and self.held_up is not None:
            return held_up(self.held_up, what)
        return Again(what, hint="is the broker alive?")
