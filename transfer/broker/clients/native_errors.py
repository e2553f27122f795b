"""Converts the broker's refusals to exceptions."""

from __future__ import annotations

from typing import Any

from transfer.transports import errors

#: exceptions that the broker may name
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
    """The broker has not taken the message, since its queue is full. The client may publish it again."""


def error_of(words: dict[str, Any]) -> errors.TransferError:
    """Returns the exception that the broker named."""
    kind = getattr(errors, str(words.get("code")), None)
    text = str(words.get("message", "refused"))
    if words.get("again") is True:
        return NotTaken(text)
    if kind in _KINDS:
        refused: errors.TransferError = kind(text)
        return refused
    return errors.UsageError(text)


def held_up(why: errors.TransferError, what: str) -> errors.TransferError:
    """Returns the error of a publisher whose time is over. why: the broker's reason for blocking it."""
    kind = errors.LogFull if isinstance(why, errors.LogFull) else errors.Again
    return kind(f"{what}: {why}", hint="the message may still be kept; let consumers acknowledge")
