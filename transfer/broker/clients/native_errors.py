"""What the broker refuses, as errors of ours."""

from __future__ import annotations

from typing import Any

from transfer.transports import errors

#: families that the broker names
_KINDS = (
    errors.UsageError,
    errors.LogFull,
    errors.Again,
    errors.InDoubt,
    errors.InternalError,
    errors.OptionError,
    errors.Closed,
)


class NotTaken(errors.LogFull):
    """Nothing was done of it: too much waits in front of it, and it may be published again."""


def error_of(words: dict[str, Any]) -> errors.TransferError:
    """The broker's error, of the family that it named."""
    kind = getattr(errors, str(words.get("code")), None)
    text = str(words.get("message", "refused"))
    if words.get("again") is True:
        return NotTaken(text)
    if kind in _KINDS:
        refused: errors.TransferError = kind(text)
        return refused
    return errors.UsageError(text)


def held_up(why: errors.TransferError, what: str) -> errors.TransferError:
    """What a publisher hears when its time is over and the broker has said why it waits."""
    kind = errors.LogFull if isinstance(why, errors.LogFull) else errors.Again
    return kind(f"{what}: {why}", hint="it may be kept yet; let consumers acknowledge")
