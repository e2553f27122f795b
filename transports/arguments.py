"""Checks arguments. Each function returns the checked value or raises ArgumentError."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from operator import index
from typing import Any, TypeVar

from transfer.transports.errors import ArgumentError

K = TypeVar("K")
C = TypeVar("C", bound="Callable[..., Any] | None")

#: the longest wait of a lock in seconds, some 292 years; a longer time-out never expires
_LONGEST = threading.TIMEOUT_MAX


def wrong(name: str, given: object, wanted: str) -> ArgumentError:
    """The error for a wrong argument. wanted: what the call accepts, as the hint."""
    return ArgumentError(f"{name} cannot be {shown(given)}", hint=wanted)


def shown(given: object) -> str:
    """A short text for a value: its repr may be long, or fail."""
    try:
        text = repr(given)
    except Exception:  # noqa: BLE001 - the caller reports another error
        text = f"a {type(given).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(given: Any) -> int | None:
    """A whole number as an int, numpy's too; None for everything else."""
    try:
        return index(given)
    except TypeError:
        return None


def flags_of(flags: Any) -> int:
    """The flags of a send or receive."""
    if type(flags) is int and 0 <= flags <= 3:  # first: the fast path of every send and receive
        return flags
    bits = number(flags)
    if bits is not None and 0 <= bits <= 3:
        return bits
    raise wrong("flags", flags, "0, DONTWAIT, SNDMORE, or both: DONTWAIT | SNDMORE")


def events_of(flags: Any) -> int:
    """Bits that a poll waits for."""
    if type(flags) is int and 0 <= flags < 1 << 15:
        return flags
    bits = number(flags)
    if bits is not None and 0 <= bits < 1 << 15:
        return bits
    raise wrong("flags", flags, "POLLIN, POLLOUT, or both: POLLIN | POLLOUT")


def milliseconds(timeout: Any, name: str = "timeout") -> float | None:
    """A time-out in milliseconds; None never expires."""
    return _time(timeout, name, "milliseconds", _LONGEST * 1000)


def linger_of(linger: Any) -> float | None:
    """A linger in milliseconds: negative never expires; None: the socket option decides."""
    given = milliseconds(linger, "linger")
    return -1 if given is None and linger is not None else given


def seconds(timeout: Any, name: str = "timeout") -> float | None:
    """A time-out in seconds; None never expires."""
    return _time(timeout, name, "seconds", _LONGEST)


def _time(given: Any, name: str, unit: str, longest: float) -> float | None:
    if given is None:
        return None
    if isinstance(given, (int, float, Real)):
        limit: Any = given
        if limit > longest:
            return None
        if limit == limit:  # false for NaN
            return max(limit, -longest)  # type: ignore[no-any-return]
    raise wrong(name, given, f"a number of {unit}, or None to wait without end")


def patience(given: Any, name: str = "timeout", *, endless: bool = True) -> float | None:
    """Seconds from 0 on. endless: None never expires; else infinity never expires."""
    found = seconds(given, name)
    if (found is None and given is None and not endless) or (found is not None and found < 0):
        forever = "None" if endless else 'float("inf")'
        raise wrong(name, given, f"a number of seconds from 0 on, or {forever} to wait without end")
    return found if endless or found is not None else _LONGEST


def whole(given: Any, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """A whole number."""
    found = number(given)
    if found is not None and low <= found <= high:
        return found
    upto = f"from {low} to {high}" if high < 2**31 else f"of {low} or more"
    raise wrong(name, given, f"a whole number {upto}")


def octets(given: Any, name: str) -> bytes:
    """Bytes, or text as UTF-8. A number is refused: `bytes(3)` would be three zeros."""
    try:
        if isinstance(given, str):
            return given.encode()
        if isinstance(given, bytes | bytearray | memoryview):
            return bytes(given)
    except UnicodeEncodeError:
        raise wrong(name, given, "text that UTF-8 can encode") from None
    raise wrong(name, given, "bytes or text")


def text(given: Any, name: str) -> str:
    """Text that can be encoded."""
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError:
            raise wrong(name, given, "text that UTF-8 can encode") from None
        return given
    raise wrong(name, given, "text")


def instance(given: Any, kind: type[K], name: str) -> K:
    """An object that only this library makes."""
    if not isinstance(given, kind):
        raise wrong(name, given, f"a {kind.__name__}, as `recv` returns it")
    return given


def callable_or_none(given: C, name: str, takes: str) -> C:
    """A function that is called with `takes`, or None."""
    if given is None or callable(given):
        return given
    raise wrong(name, given, f"a function that takes {takes}, or None")


def sequence(given: Any, name: str, of: str) -> Iterable[Any]:
    """A sequence of values: no text and no bytes, although they are iterable."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        return given
    raise wrong(name, given, f"a list of {of}")


def members(given: Any, name: str) -> Mapping[str, Any]:
    """A dict of values by name; None is an empty one."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    raise wrong(name, given, "a dict, or None")


def decoder_of(encoding: str) -> None:
    """Checks an encoding before a message is received. Raises ArgumentError."""
    try:
        codecs.lookup(encoding)
    except (LookupError, TypeError, ValueError):
        raise wrong("encoding", encoding, 'the name of an encoding, for instance "utf-8"') from None
