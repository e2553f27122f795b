"""docs/architecture.md names no file or function that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text()


def test_paths_in_the_text_exist() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.pyx|\.py|\.pyi))`", TEXT))
    bases = (ROOT, ROOT / "transports", ROOT / "patterns", ROOT / "transfer")
    assert len(paths) > 50
    assert {path for path in paths if not any((base / path).exists() for base in bases)} == set()


def test_names_of_the_core_in_the_text_exist() -> None:
    """Functions and classes that the way of a message goes through."""
    core = "".join(path.read_text() for path in (ROOT / "transports/core/native").glob("*.pyx"))
    for name in ("push_one", "push_all", "link_push", "send_frames", "next_message", "next_frame", "Turn"):
        assert f"`{name}`" in TEXT or f".{name}`" in TEXT
        assert re.search(rf"\b(def|class|int|object|tuple|Stream) {name}\b", core), name
