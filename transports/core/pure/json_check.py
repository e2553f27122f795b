"""Whether JSON decoders can read a peer's text. Where a number may be too large, a decoder decides."""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate

#: the most digits of an integer, with its sign: msgspec's limit, and one less than Python's
_MOST_DIGITS = 4300
#: each bracket as 1 or -1 of a signed byte, and all bytes that are no bracket
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
#: makes all digits equal; a number that may be too large has this many of them, or such an exponent
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY = b"0" * 200
_EXPONENT = re.compile(rb"e\+?0000*(?:[\s,\]}]|\Z)")


def check_json(text: bytes, deepest: int) -> None:
    """See `check_json` in core/contract.pyi."""
    if text.count(b"[") + text.count(b"{") > deepest and _is_deep(text, deepest):
        raise ValueError(f"more than {deepest} arrays and objects within each other")
    alike = text.translate(_ALIKE)
    if _MANY in alike or _EXPONENT.search(alike):
        json.loads(text, parse_float=_finite, parse_int=_short)


def _is_deep(text: bytes, deepest: int) -> bool:
    """Counts block by block; inside one only where the limit may be reached."""
    outside = b"".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = outside.translate(_STEPS, _NO_BRACKETS)
    level = 0
    for at in range(0, len(steps), deepest):
        block = steps[at : at + deepest]
        opened = block.count(b"\x01")
        if level + opened > deepest and max(accumulate(memoryview(block).cast("b"), initial=level)) > deepest:
            return True
        level += 2 * opened - len(block)
    return False


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number that is larger than any that a double holds")
    return value


def _short(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of more than {_MOST_DIGITS:,} digits")
    return int(text)
