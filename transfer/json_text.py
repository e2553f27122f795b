"""JSON that a peer sent, as Python's values that can be sent on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from transports.arguments import callable_or_none
from transports.errors import ArgumentError

#: arrays and objects within each other at most: decoders end at about a thousand, less what they stand in
DEEPEST = 500

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: each bracket as 1 or -1 of a signed byte, and all bytes that are no bracket
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_HOOKS = ("object_hook", "object_pairs_hook", "parse_float", "parse_int", "parse_constant")
#: makes all digits alike; then a number that may be too large has so many of them, or such an exponent
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY = b"0" * 200
_EXPONENT = re.compile(rb"e\+?0000*(?:[\s,\]}]|\Z)")


def loads(text: bytes, *, strict: bool = True) -> Any:
    """As `json.loads`, but text that is no UTF-8 is refused too: an escaped half of a surrogate pair.

    `json.loads` makes a str of it that no file, log or metric takes. strict: what is no JSON for others is
    refused too (NaN, Infinity), and what `check` refuses. Raises ValueError, RecursionError.
    """
    if strict:
        check(text)
    value = json.loads(text, parse_constant=_refuse if strict else None)
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check(text: bytes) -> None:
    """Refuses JSON that decoders cannot read: numbers of more than a double's range or than 4,300 digits, and
    arrays and objects too deep within each other.

    Text that is no JSON is refused or not. Much quicker than decoding it. Raises ValueError.
    """
    if text.count(b"[") + text.count(b"{") > DEEPEST and _is_deep(text):
        raise ValueError(f"more than {DEEPEST} arrays and objects within each other")
    alike = text.translate(_ALIKE)
    if _MANY in alike or _EXPONENT.search(alike):
        json.loads(text, parse_float=_finite)


def decoder(options: dict[str, Any], decode: Callable[..., Any] = json.loads) -> Callable[[Any], Any]:
    """`decode` with keyword arguments for `json.loads`, looked at before a message is received. Raises
    ArgumentError."""
    for name in _HOOKS:
        callable_or_none(options.get(name), name, "what was decoded")
    made = dict(options)
    try:
        (made.pop("cls", None) or json.JSONDecoder)(**made)
    except TypeError as error:
        hint = "what json.loads takes: cls, strict, " + ", ".join(_HOOKS)
        raise ArgumentError(f"no JSON can be decoded so: {error}", hint=hint) from None
    return lambda text: decode(text, **options)


def dumps(value: Any) -> bytes:
    """JSON of a value, which `loads` reads. Raises ValueError, TypeError, RecursionError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    check(text)
    return text


def _is_deep(text: bytes) -> bool:
    """Counts block by block; within one only where the limit may be reached."""
    outside = b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = outside.translate(_STEPS, _NO_BRACKETS)
    level = 0
    for at in range(0, len(steps), DEEPEST):
        block = steps[at : at + DEEPEST]
        opened = block.count(b"\x01")
        if level + opened > DEEPEST and max(accumulate(memoryview(block).cast("b"), initial=level)) > DEEPEST:
            return True
        level += 2 * opened - len(block)
    return False


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is larger than any number that a double holds")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
