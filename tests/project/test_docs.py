"""What the documents name exists: files they link to, errors, make targets, options of the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transfer
from transfer.transports import errors, registry

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    broken = [
        target
        for target in LINK.findall(text)
        if not target.startswith(("http://", "https://", "mailto:", "#"))
        and not (document.parent / target.partition("#")[0]).exists()
    ]
    assert not broken


def test_errors_are_exported() -> None:
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TransferError)
    }
    assert {name: getattr(transfer, name, None) for name in classes} == classes
    assert set(classes) <= set(transfer.__all__)


def words_given_to(call: str) -> set[str]:
    """Constant words that the code passes as the first argument of this call."""
    pattern = re.compile(call + r'\(\s*"([a-z_]+)"')
    return {
        word
        for package in ("transfer", "transports", "patterns")
        for suffix in ("*.py", "*.pyx")
        for path in (ROOT / package).rglob(suffix)
        for word in pattern.findall(path.read_text())
    }


@pytest.mark.parametrize(
    ("call", "document"),
    [("ProtocolError", "errors"), ("HandshakeError", "errors"), (r"\.drop", "metrics")],
)
def test_reasons_are_documented(call: str, document: str) -> None:
    text = (ROOT / "docs" / f"{document}.md").read_text()
    words = words_given_to(call)
    assert len(words) > 5
    assert {word for word in words if f"`{word}`" not in text} == set()


def test_transports_are_documented_as_labels() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    (label,) = re.findall(r"^`transport` is what carries the data:.*$", text, re.MULTILINE)
    assert {name for name in (*registry._BUILTIN, *registry._UPGRADES) if f"`{name}`" not in label} == set()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", ["setup", "demo", "test", "check", "bench", "build", "clean"])
def test_make_knows_the_target(target: str) -> None:
    answer = subprocess.run(
        ["make", "-n", "--no-print-directory", target],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_documents_and_code_name_the_same_python() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert sys.version_info >= (3, 11)
