"""Conversions between text and bytes, kept for old programs (deprecated in pyzmq 23)."""

from __future__ import annotations

import warnings

__all__ = ["asbytes", "b", "basestring", "bytes", "cast_bytes", "cast_unicode", "u", "unicode"]

bytes = bytes
unicode = str
basestring = (str,)


def _deprecated() -> None:
    warnings.warn("utils.strtypes is deprecated, as in pyzmq 23", DeprecationWarning, stacklevel=3)


def cast_bytes(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> bytes:
    """Converts text or bytes to bytes."""
    _deprecated()
    if isinstance(s, str):
        return s.encode(encoding, errors)
    if isinstance(s, bytes):
        return s
    raise TypeError(f"expected text or bytes, not {s!r}")


def cast_unicode(s: str | bytes, encoding: str = "utf8", errors: str = "strict") -> str:
    """Converts text or bytes to text."""
    _deprecated()
    if isinstance(s, bytes):
        return s.decode(encoding, errors)
    if isinstance(s, str):
        return s
    raise TypeError(f"expected text or bytes, not {s!r}")


b = asbytes = cast_bytes
u = cast_unicode
