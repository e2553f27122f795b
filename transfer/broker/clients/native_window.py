"""Limits how far a program publishes ahead of the broker's answers."""

from __future__ import annotations

from transfer.broker.clients.native_errors import held_up
from transfer.transports.errors import Again, TransferError

#: messages without an answer, and bytes, after which the publisher processes answers
_PROCESS_EVERY, _PROCESS_BYTES = 512, 4 << 20
#: bytes that the program publishes ahead while the broker blocks publishers
_AHEAD = 16 << 20
#: seconds until a message is published again that the broker had no room for
TRY_AGAIN = 0.2


class PublishWindow:
    """Counts unanswered bytes. Used with the client's lock. held_up: why the broker blocks publishers."""

    def __init__(self) -> None:
        self.answered()

    def answered(self) -> None:
        """Called when the broker has kept a message, or the connection has ended."""
        self.held_up: TransferError | None = None
        self.begin()

    def begin(self) -> None:
        """Resets the counters."""
        self._ahead = self._processed_at = 0  # bytes published, now and when answers were processed

    @property
    def is_full(self) -> bool:
        """Whether the publisher has to wait for the broker's answer."""
        return self.held_up is not None and self._ahead > _AHEAD

    def add(self, nbytes: int, unanswered: int) -> bool:
        """Counts published bytes. Returns whether the publisher has to process answers now."""
        self._ahead += nbytes
        if unanswered < _PROCESS_EVERY and self._ahead - self._processed_at <= _PROCESS_BYTES:
            return False
        self._processed_at = self._ahead
        return True

    def late(self, what: str, *, publishes: bool) -> TransferError:
        """Returns the error of a call whose time is over."""
        if publishes and self.held_up is not None:
            return held_up(self.held_up, what)
        return Again(what, hint="is the broker alive?")
