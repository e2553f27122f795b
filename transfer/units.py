"""Sizes and times as people write them: in flags, variables and files. Pure."""

from __future__ import annotations

import re

_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTES |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
#: words for no value
OFF = ("off", "none", "no", "false")


def size(given: object, least: int = 0) -> int:
    """Parses bytes: 65536, `64KiB`, `1.5M`, `1TB`. Ki, Mi, Gi, Ti are powers of 1024. Raises ValueError."""
    nbytes = _with_unit(given, _BYTES, "[kmgt]i?", "b?")
    if nbytes is None or nbytes < least:
        raise ValueError("a size, such as 65536, 64KiB or 1.5M")
    return int(nbytes)


def seconds(given: object) -> float:
    """Parses seconds: 90, 0.5, `200ms`, `15m`, `12h`, `7d`. Raises ValueError."""
    found = _with_unit(given, _SECONDS, "ms|[smhd]", "")
    if found is None:
        raise ValueError("a time, such as 90, 200ms, 15m or 7d")
    return found


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
