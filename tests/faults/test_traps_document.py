"""docs/traps.md names tests: they exist, and no trap of this release is left out."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/traps.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", TEXT)))
TRAPS = {*range(1, 11), *range(20, 27), 28, 29, *range(32, 35), *range(36, 39), 41, 42}


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions(ROOT / path)


def test_every_trap_has_its_test() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| `tests/.*\|$", TEXT, flags=re.MULTILINE)
    assert {int(number) for number in rows} == TRAPS
    assert TEXT.count("::") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", TEXT))
