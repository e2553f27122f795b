"""Sizes and times as people write them: in flags, variables and files. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTES |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
#: words for no value
OFF = ("off", "none", "no", "false")


def size(given: object, least: int = 1) -> int:
    """Parses bytes: 65536, `64KiB`, `1.5M`, `1TB`. Ki, Mi, Gi, Ti are powers of 1024.

    least: the smallest size, in bytes. Raises ValueError, whose text says what is allowed.
    """
    nbytes = _with_unit(given, _BYTES, "[kmgt]i?", "b?")
    if nbytes is None or nbytes < least:
        smallest = f"{least >> 20} MiB" if least >= _BYTES["mi"] else f"{least} B"
        raise ValueError(f"a size from {smallest} on, such as 1500000, 64MiB or 1.5G")
    return int(nbytes)


def seconds(given: object, least: float = 0.0, most: float = math.inf) -> float:
    """Parses seconds: 90, 0.5, `200ms`, `15m`, `12h`, `7d`.

    least, most: the limits, in seconds. Raises ValueError, as `size`.
    """
    found = _with_unit(given, _SECONDS, "ms|[smhd]", "")
    if found is None or not least <= found <= most:
        if most < math.inf:
            raise ValueError(f"a time from {least:g} to {most:g} s")
        limit = f" from {least:g} s on" if least else ""
        raise ValueError(f"a time{limit}, such as 90 (seconds), 200ms, 15m or 7d")
    return found


def age(given: object) -> float:
    """Parses seconds as `seconds` does, but not 0, which would end everything at once."""
    return seconds(given, least=0.001)


def or_off(read: Callable[[object], T]) -> Callable[[object], T | None]:
    """Returns a parser that also accepts `off`, `none` or another word for no value, as None."""

    def parse(given: object) -> T | None:
        try:
            return None if is_off(given) else read(given)
        except ValueError as error:
            raise ValueError(f"{error}; off or none for no value") from error

    return parse


def is_off(given: object) -> bool:
    """Whether this is `off`, `none` or another word for no value."""
    return given is False or (isinstance(given, str) and given.strip().lower() in OFF)


def show_size(nbytes: float) -> str:
    """Formats bytes with three digits: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def show_age(seconds: float) -> str:
    """Formats an age: `3 d`, `12 h`, `5 min`, `7 s`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _with_unit(given: object, units: dict[str, float] | dict[str, int], unit: str, end: str) -> float | None:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given if 0 <= given < 1 << 62 else None
    if not isinstance(given, str):
        return None
    match = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({unit})?{end}\s*", given, re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    amount = float(match[1]) if "." in match[1] or len(match[1]) > 18 else int(match[1])
    value = amount * units[(match[2] or "").lower()]
    return value if value < 1 << 62 else None
