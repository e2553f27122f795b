"""docs/architecture.md names every file there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text()


def names_under(heading: str) -> set[str]:
    """What the table under this heading has in its first column."""
    section = TEXT.split(f"\n### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize("package", ["transports", "patterns", "transfer"])
def test_every_file_of_the_package_is_in_the_table(package: str) -> None:
    named = names_under(package)
    assert {name for name in named if not (ROOT / package / name).exists()} == set()
    folders = tuple(name for name in named if name.endswith("/"))
    files = {
        str(path.relative_to(ROOT / package))
        for suffix in ("*.py", "*.pyx")
        for path in (ROOT / package).rglob(suffix)
        if path.name != "__init__.py"
    }
    assert {file for file in files if file not in named and not file.startswith(folders)} == set()


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
