"""Converts producers' times to the broker's clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transfer.steady_clock import of_wall, unix_ms

if TYPE_CHECKING:
    from transfer.broker.protocols.abtp_envelope import Envelope


def timed(envelope: Envelope) -> Envelope:
    """Converts the envelope's times from the wall clock, which may have been set since this process began."""
    expires, due = of_wall(envelope.expires_ms), of_wall(envelope.due_ms)
    if (expires, due) == (envelope.expires_ms, envelope.due_ms):
        return envelope
    return replace(envelope, expires_ms=expires, due_ms=due)


def expired(envelope: Envelope) -> bool:
    """Returns whether an envelope that was `timed` has expired."""
    return 0 < envelope.expires_ms <= unix_ms()
