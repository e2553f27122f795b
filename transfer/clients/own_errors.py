"""What the broker refuses, as errors of ours."""

from __future__ import annotations

from typing import Any

from transports import errors

#: families that the broker names
_KINDS = (
    errors.UsageError,
    errors.LogFull,
    errors.InDoubt,
    errors.InternalError,
    errors.OptionError,
    errors.Closed,
)


def error_of(words: dict[str, Any]) -> errors.TransferError:
    """The broker's error, of the family that it named."""
    kind = getattr(errors, str(words.get("code")), None)
    text = str(words.get("message", "refused"))
    if kind in _KINDS:
        refused: errors.TransferError = kind(text)
        return refused
    return errors.UsageError(text)
