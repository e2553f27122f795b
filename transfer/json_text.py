"""Decodes a peer's JSON to values that can be encoded again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from transfer.transports.arguments import callable_or_none
from transfer.transports.core import check_json
from transfer.transports.errors import ArgumentError

#: depth of nested arrays and objects at most: decoders fail at about a thousand, minus the depth of the
#: caller
_DEEPEST = 500

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HOOKS = ("object_hook", "object_pairs_hook", "parse_float", "parse_int", "parse_constant")


def loads(text: bytes, *, strict: bool = True) -> Any:
    """Decodes JSON as `json.loads`, but refuses an escaped half of a surrogate pair.

    `json.loads` makes a str of it that cannot be encoded as UTF-8, so that no file, log or metric takes it.
    strict: also refuses NaN and Infinity, which are no JSON, and what `check` refuses. Raises ValueError,
    RecursionError.
    """
    if strict:
        check(text)
    value = json.loads(text, parse_constant=_refuse if strict else None)
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check(text: bytes) -> None:
    """Refuses JSON that decoders cannot read: see `check_json` in core/contract.pyi. Raises ValueError."""
    check_json(text, _DEEPEST)


def decoder(options: dict[str, Any], decode: Callable[..., Any] = json.loads) -> Callable[[Any], Any]:
    """Returns `decode` with keyword arguments for `json.loads`, and checks them now. Raises ArgumentError."""
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
    """Encodes a value as JSON that `loads` reads. Raises ValueError, TypeError, RecursionError."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    check(text)
    return text


def check_plain(value: Any) -> None:
    """Refuses what an encoder of JSON would make text of without a word: keys that are numbers, bytes, times.

    Raises TypeError, RecursionError.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.40} is {type(key).__name__}, not str")
        value = value.values()
    elif not isinstance(value, list | tuple):
        if not isinstance(value, str | int | float | None):
            raise TypeError(f"{value!r:.40} is {type(value).__name__}, which JSON does not have")
        return
    for member in value:
        check_plain(member)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")
