"""The sizes that decide how a payload travels are the same in Python and in the compiled core."""

from __future__ import annotations

import re
from pathlib import Path

from transfer.transports import sizes

ROOT = Path(__file__).parents[2]


def test_the_compiled_core_has_the_same_sizes() -> None:
    text = (ROOT / "transports/core/native/sizes.pxd").read_text()
    compiled = {name: int(a) * int(b) for name, a, b in re.findall(r"(\w+) = (\d+) \* (\d+)", text)}
    assert compiled == {"LARGE": sizes.LARGE, "VERY_LARGE": sizes.VERY_LARGE}
