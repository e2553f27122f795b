"""Rules that no linter has, as far as they can be counted."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for package in ("transfer", "transports", "patterns") for path in (ROOT / package).rglob("*.py")
)
CORE = sorted((ROOT / "transports/core/native").glob("*.pyx"))
LONGEST_FILE = 500
#: Files with one class that is long because it is one thing: a class is not cut to make its file shorter.
#: Socket: 80 public methods and options with their documentation, and the core's hooks that they share.
#: The one of pyzmq: as many methods, with overloads for type checkers.
LONGER_FILES = {
    "transfer/asyncio.py": 515,
    "transfer/sockets/socket.py": 1414,
    "transfer/zmq/socket.py": 600,
}
LONGEST_CORE_FILE = 500  # it declares its variables and what it uses of C
LONGEST_FUNCTION = 80
VAGUE = re.compile(r"\bclass \w*(Manager|Helper|Util)s?\b")
BARE = {"Exception", "RuntimeError", "NotImplementedError", "BaseException"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= LONGER_FILES.get(name_of(path), LONGEST_FILE)
    assert not VAGUE.search(text)
    if text.strip():
        assert ast.get_docstring(tree), "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{node.name} is long"


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=name_of)
def test_a_package_begins_with_a_table_of_its_files(path: Path) -> None:
    there = {
        one.stem
        for one in path.parent.iterdir()
        if one.suffix in (".py", ".pyx") or ((one / "__init__.py").exists() and not one.is_symlink())
    }
    there.discard("__init__")
    table = re.findall(r"^(\w+)  +\S", ast.get_docstring(ast.parse(path.read_text())) or "", re.MULTILINE)
    assert len(table) == len(set(table))
    assert set(table) == (there if len(there) > 1 else set())


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_a_file_of_the_compiled_core_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_CORE_FILE
    assert not VAGUE.search(text)
    assert re.match(r'# cython: .*\n"""\w', text), "no docstring"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_errors_are_typed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            assert ast.unparse(raised) not in BARE, f"line {node.lineno}"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: bare except"
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            assert not (silent and ast.unparse(node.type) in BARE), f"line {node.lineno}: swallowed"


#: a source that a text names, with its folder or without
NAMED = re.compile(r"(?<![\w./*-])((?:\w+/)*\w+\.(?:pyx|pxd|pyi|py))\b")
#: folders of other projects
OTHERS = ("pyverbs/",)
SOURCES = [
    path
    for package in ("transfer", "transports", "patterns", "tests", "bench")
    for path in (ROOT / package).rglob("*")
    if path.suffix in (".py", ".pyx", ".pxd", ".pyi")
]


def comments_of(path: Path) -> Iterator[str]:
    """Its comments and docstrings."""
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        yield from re.findall(r'#.*|"""(?:.|\n)*?"""', text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_files_that_comments_name_exist() -> None:
    parts = [path.relative_to(ROOT).parts for path in SOURCES]
    there = {"/".join(one[begin:]) for one in parts for begin in range(len(one))}
    product = [path for path in SOURCES if path.relative_to(ROOT).parts[0] not in ("tests", "bench")]
    named = {
        (name_of(path), name)
        for path in product
        for text in comments_of(path)
        for name in NAMED.findall(text)
        if not name.startswith(OTHERS)
    }
    assert len(named) > 50
    assert {(path, name) for path, name in named if name not in there} == set()


#: the two columns of the table of the core's classes
_LEFT, _RIGHT = slice(4, 40), slice(40, None)


def test_the_chains_of_the_cores_classes_are_as_its_docstring_says() -> None:
    folder = ROOT / "transports/core/native"
    lines = re.findall(r"^ {4}.*\.pyx$", (folder / "__init__.py").read_text(), re.M)
    chains = [[line[place].split() for line in lines if line[place].split()] for place in (_LEFT, _RIGHT)]
    assert [len(chain) for chain in chains] == [6, 7]
    for chain in chains:
        base = ""
        for name, file in chain:
            assert f"cdef class {name}{base}:" in (folder / file).read_text()
            base = f"({name})"
