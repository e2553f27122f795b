"""docs/seeds.md: each promise has its end, and the tests that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATES = ("kept", "otherwise", "not yet")


def rows():
    """(promise, state, how, tests) of each row."""
    for line in (ROOT / "docs" / "seeds.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if cells and cells[0] != "promise":
            yield pytest.param(*cells[:3], re.findall(r"`([^`]+)`", " ".join(cells[3:])), id=cells[0][:60])


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "state", "how", "tests"), list(rows()))
def test_a_promise_is_shown(promise, state, how, tests):
    assert promise and state in STATES
    assert how or state == "kept", "why it is otherwise, or where it is planned"
    assert tests or state == "not yet"
    for name in tests:
        path, _, test = name.partition("::")
        found = ROOT / "tests" / path
        assert found.is_file(), path
        assert not test or test in functions_of(found), name


def test_all_rows_are_read():
    lines = (ROOT / "docs" / "seeds.md").read_text().splitlines()
    tables = sum(line.startswith("|---") for line in lines)
    assert len(list(rows())) == sum(line.startswith("|") for line in lines) - 2 * tables
