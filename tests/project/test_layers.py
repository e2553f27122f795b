"""The layering of pyproject.toml is really checked: a wrong import is found."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("transfer", "transports", "patterns")
FORBIDDEN_IN_PATTERNS = {"socket", "threading", "time", "asyncio", "select", "selectors", "_thread", "os"}
ENVIRONMENT_READERS = {"transports/config.py", "transfer/config.py"}
HOMES = {
    "torch": ("transfer/torch/", "transfer/tensors/build.py", "transfer/tensors/export.py"),
    "pyspark": ("transfer/spark/", "pyspark_transfer"),
    "pyarrow": ("transfer/spark/",),
    "prometheus_client": ("transfer/metrics/prometheus.py",),
    "typer": ("transfer/cli/",),
    "cuda": ("transports/cuda.py",),
    "ucxx": (),
}


@cache
def sources() -> list[tuple[str, ast.Module]]:
    return [
        (str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def import_linter() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is named in an import, wherever it stands, but not for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        yield from imports(node)


def test_an_arrow_never_points_up() -> None:
    below = {"transports": ("transports",), "patterns": ("transports", "patterns")}
    wrong = [
        f"{path}: {name}"
        for path, tree in sources()
        for name in imports(tree)
        if name.startswith("transfer.")
        and name.split(".")[1] not in below.get(path.partition("/")[0], (name.split(".")[1],))
    ]
    assert not wrong


def test_patterns_are_pure() -> None:
    wrong = [
        f"{path}: {name}"
        for path, tree in sources()
        if path.startswith("patterns/")
        for name in imports(tree)
        if name.partition(".")[0] in FORBIDDEN_IN_PATTERNS
    ]
    assert not wrong


def test_nothing_borrows_from_the_twin_of_the_core() -> None:
    """The package `core` chooses it, by name; what others need too stands beside it."""
    twin = re.compile(r"transfer\.transports\.core(\.pure\b| import .*\bpure\b)")
    wrong = [
        path
        for path, tree in sources()
        if not path.startswith("transports/core/pure/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and twin.search(ast.unparse(node))
    ]
    assert not wrong


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_has_one_home(library: str) -> None:
    wrong = [
        path
        for path, tree in sources()
        if library in {name.partition(".")[0] for name in imports(tree)}
        and not path.startswith(HOMES[library])
    ]
    assert not wrong


def test_only_two_files_read_the_environment() -> None:
    wrong = [
        path
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv", "environb"}
        and ast.unparse(node.value) == "os"
        and path not in ENVIRONMENT_READERS
    ]
    # Spark's processes get their settings through the environment, so one more file writes it.
    assert sorted(set(wrong) - {"transfer/spark/session.py"}) == []


def test_import_linter_reads_the_same_rules() -> None:
    rules = import_linter()
    assert rules["root_packages"] == ["transfer"]
    layers = next(rule["layers"] for rule in rules["contracts"] if rule.get("containers") == ["transfer"])
    assert layers[-1] == "transports" and "patterns" in layers[-2]
    pure = next(rule for rule in rules["contracts"] if rule.get("source_modules") == ["transfer.patterns"])
    assert set(pure["forbidden_modules"]) >= FORBIDDEN_IN_PATTERNS - {"os"}


def test_the_picture_shows_the_layers_that_import_linter_checks() -> None:
    contracts = [rule for rule in import_linter()["contracts"] if rule["type"] == "layers"]
    assert all(rule["exhaustive"] and len(rule["containers"]) == 1 for rule in contracts)
    checked = {rule["containers"][0]: [layer.split(" | ") for layer in rule["layers"]] for rule in contracts}
    picture = (ROOT / "docs/architecture.md").read_text().split("```")[1]
    shown: dict[str, list[list[str]]] = {}
    for line in filter(None, picture.splitlines()):
        words = re.split(r"  +", line.strip())
        if not line.startswith(" "):
            layers = shown[words[0].rstrip("/").replace("/", ".")] = []
            continue
        names = itertools.takewhile(re.compile(r"\w+(/|\.py)").fullmatch, words)
        layers.append([name.removesuffix(".py").rstrip("/") for name in names])
    assert shown == checked
