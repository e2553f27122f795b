"""The test vectors that stand in the documents of the protocols."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "docs/protocols"
_ROW = re.compile(r"^\| (.+) \| `([0-9a-f ]+)` \|$", re.MULTILINE)


def vectors(protocol: str) -> dict[str, bytes]:
    """What each row of the document's table says, and the bytes for it."""
    text = (_FOLDER / f"{protocol}.md").read_text()
    table = text.split("\n## Test vectors\n")[1]
    return {name: bytes.fromhex(digits) for name, digits in _ROW.findall(table)}
