"""JSON that a peer sent, as Python's values that can be sent on."""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BYTES = re.compile(_ESCAPED_SURROGATE.pattern.encode())


def loads(text: bytes | str, **options: Any) -> Any:
    """As `json.loads`, but text that is no UTF-8 is refused too: an escaped half of a surrogate pair.

    `json.loads` makes a str of it that no file, log or metric takes. Raises ValueError, RecursionError.
    """
    value = json.loads(text, **options)
    pattern = _ESCAPED_SURROGATE if isinstance(text, str) else _BYTES
    if pattern.search(text):  # type: ignore[arg-type]
        json.dumps(value, ensure_ascii=False).encode()
    return value
