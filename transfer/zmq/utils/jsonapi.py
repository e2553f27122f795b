"""JSON as UTF-8 bytes."""

from __future__ import annotations

import json
from typing import Any

jsonmod = json

__all__ = ["dumps", "loads"]


def dumps(o: object, **kwargs: Any) -> bytes:
    """Returns `o` as JSON in UTF-8; keywords go to `json.dumps`."""
    return json.dumps(o, **kwargs).encode("utf-8")


def loads(s: bytes | str, **kwargs: Any) -> Any:
    """Returns the object of JSON bytes or text; keywords go to `json.loads`."""
    if isinstance(s, bytes):
        s = s.decode("utf-8")
    return json.loads(s, **kwargs)
