"""Parses values of options: with TOML's types from a file, as text from elsewhere. Pure.

Each function returns the value, or raises ValueError, whose text names what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transfer import units
from transfer.units import OFF, is_off, or_off

if TYPE_CHECKING:  # the command line reads the table of options at each start
    from transfer.broker.core.topic_patterns import TopicPattern
    from transfer.broker.delivery.subscriber import Overflow
    from transfer.broker.storage.volume import VolumeShare

#: parses what the user wrote
Reader = Callable[[object], Any]

seconds, age, size = units.seconds, units.age, units.size


def text(given: object) -> str:
    """Parses a text."""
    if not isinstance(given, str):
        raise ValueError("a text")
    return given


def flag(given: object) -> bool:
    """Parses `true`, `false` and their usual synonyms."""
    words = {"true": True, "yes": True, "on": True, "1": True} | dict.fromkeys((*OFF, "0"), False)
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.strip().lower() in words:
        return words[given.strip().lower()]
    raise ValueError("true or false")


def number(least: int = 0, most: int = 1 << 53) -> Callable[[object], int]:
    """Returns a parser of whole numbers from `least` to `most`."""

    def read(given: object) -> int:
        if isinstance(given, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", given):
            given = int(given)
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            raise ValueError(f"a whole number from {least}" + (f" to {most}" if most < 1 << 53 else ""))
        return given

    return read


def log_limit(given: object) -> int | VolumeShare:
    """Parses the bytes that a log may take, or a share of the volume: `80%`."""
    from transfer.broker.storage.volume import VolumeShare
    from transfer.log.retention import SMALLEST_LOG

    match = re.fullmatch(r"\s*(\d{1,3})\s*%\s*", given, re.ASCII) if isinstance(given, str) else None
    if match is not None and 1 <= int(match[1]) <= 100:
        return VolumeShare(int(match[1]))
    try:
        return units.size(given, least=SMALLEST_LOG)
    except ValueError as error:
        raise ValueError(f"{error}; or a share of the volume, such as 80%") from error


def up_to(most: float) -> Reader:
    """Returns a parser of seconds up to a limit."""

    return lambda given: seconds(given, most=most)


def port(given: object) -> int | None:
    """Parses a port, 0 for a free one; `off`: None."""
    if is_off(given):
        return None
    try:
        return number(0, 65_535)(given)
    except ValueError:
        raise ValueError("a port from 0 to 65535, or off") from None


def endpoint_or_off(given: object) -> str:
    """Parses an endpoint as `endpoint` does; `off`: empty."""
    return or_off(endpoint)(given) or ""


def endpoint(given: object) -> str:
    """Parses `tcp://HOST:PORT`; the scheme is optional."""
    found = text(given).strip()
    if "://" not in found:
        found = f"tcp://{found}"
    host, colon, digits = found.removeprefix("tcp://").rpartition(":")
    if found.startswith("tcp://") and not (
        host and colon and (digits == "*" or (digits.isdecimal() and int(digits) < 65_536))
    ):
        raise ValueError("an endpoint, such as tcp://127.0.0.1:5580")
    return found


def overflow(given: object) -> Overflow:
    """Parses what the broker does when a subscriber's buffer is full."""
    from transfer.broker.delivery.subscriber import Overflow

    words = {one.name.lower(): one for one in Overflow}
    if isinstance(given, str) and given.lower() in words:
        return words[given.lower()]
    raise ValueError(" or ".join(sorted(words)))


def word(*words: str) -> Reader:
    """Returns a parser that accepts only these words."""

    def read(given: object) -> str:
        if isinstance(given, str) and given.strip().lower() in words:
            return given.strip().lower()
        raise ValueError(" or ".join(filter(None, words)))

    return read


def allowed(given: object) -> bool:
    """Parses `allow` or an empty text: a plain `true` is too easy to write for a risk."""
    if given in ("", "allow", False):
        return given == "allow"
    raise ValueError("allow, or nothing at all")


def patterns(given: object) -> tuple[TopicPattern, ...]:
    """Parses a list of patterns, or one text with commas; each is `KIND:TEXT`, or a topic without a colon."""
    if isinstance(given, str):
        given = [one.strip() for one in given.split(",") if one.strip()]
    if not isinstance(given, list):
        raise ValueError("a list of patterns, such as ['dots:metrics.>', 'prefix:live-', 'frames']")
    return tuple(map(_pattern, given))


def endpoints(given: object) -> dict[str, str]:
    """Parses a table of topics and endpoints; as text: `topic=endpoint,topic=endpoint`."""
    return _table(given, endpoint, "topics and endpoints, such as {orders = 'tcp://127.0.0.1:5583'}")


def quotas(given: object) -> dict[str, int]:
    """Parses a table of names and whole numbers; as text: `name=number,name=number`."""
    return _table(given, number(1), "whole numbers, such as {acme = 100}")


def _table(given: object, read: Reader, what: str) -> dict[str, Any]:
    if isinstance(given, str):
        pairs = [one.partition("=") for one in given.split(",") if one.strip()]
        given = {name.strip(): value for name, _, value in pairs}
    if not isinstance(given, dict):
        raise ValueError(f"a table of {what}")
    return {str(name): read(value) for name, value in given.items()}


def _pattern(given: object) -> TopicPattern:
    from transfer.broker.core.topic_patterns import Kind, pattern
    from transfer.transports.errors import UsageError

    kinds = {kind.value: kind for kind in Kind}
    word, colon, rest = text(given).partition(":")
    if not colon:
        word, rest = Kind.EXACT.value, word
    elif word not in kinds:  # a topic may contain a colon, but most often the kind is misspelt
        near = difflib.get_close_matches(word, kinds, 1)
        kind = f"{near[0]!r} is the nearest" if near else f"there are {', '.join(kinds)}"
        raise ValueError(
            f"a list of patterns, and {word!r} is no kind of them ({kind}); that topic is 'exact:{given}'"
        )
    try:
        return pattern(kinds[word], rest)
    except UsageError as error:
        raise ValueError(f"a list of patterns, and {error}") from error
