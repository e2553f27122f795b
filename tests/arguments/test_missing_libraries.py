"""A module that needs a library which is not there names it, and the extra that brings it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from transfer.transports.errors import install_hint

ROOT = Path(__file__).parents[2]

SPOOL = (
    "transfer.spool.client.run_client",
    "transfer.spool.server.server",
    "transfer.spool.client.row_stream",
)
#: by library: the modules that need it, and the extra
NEEDED = {
    "msgspec": {
        **dict.fromkeys(SPOOL, "spool"),
        **dict.fromkeys(
            ("transfer.torch.stream_dataset", "transfer.torch.run_dataset", "transfer.spark.source"), "spool"
        ),
        "transfer.broker.clients.abtp": "fronts",
    },
    "zmq": {"transfer.broker.clients.abtp": "fronts"},
    "cryptography": {"transfer.certificates": "certificates"},
    "torch": dict.fromkeys(
        (
            "transfer.torch.stream_dataset",
            "transfer.torch.run_dataset",
            "transfer.torch.sharded_stream",
            "transfer.torch.eager_reader",
        ),
        "torch",
    ),
    "pyspark": {"transfer.spark.source": "spark", "transfer.spark.run_reader": "spark"},
}
PROGRAM = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

library, modules = sys.argv[1], sys.argv[2:]
sys.meta_path.insert(0, Absent())
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(module, type(error).__name__, error.name, getattr(error, "hint", ""), sep="|")
    else:
        print(module)
"""


def lines_of(library, modules):
    command = [sys.executable, "-c", PROGRAM, library, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("library", NEEDED)
def test_the_extra_is_named(library):
    wanted = [
        f"{module}|MissingLibrary|{library}|pip install 'tensor-transfer[{extra}]'"
        for module, extra in NEEDED[library].items()
    ]
    assert lines_of(library, NEEDED[library])[0] == wanted


def test_pyspark_goes_on_without_what_our_source_needs():
    """It imports `pyspark_transfer` for every query of every program."""
    found, warned = lines_of("msgspec", ["pyspark_transfer"])
    assert found == ["pyspark_transfer"]
    assert "tensor-transfer[spool]" in warned


def test_a_checkout_that_is_not_installed_is_named_by_its_folder(monkeypatch):
    """pip would look for the distribution in an index, which does not have it."""

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert install_hint("lz4") == f"pip install '{ROOT}[lz4]'"


#: functions of `transports/errors.py`, and which of their arguments is an extra
EXTRA_OF = {"install_hint": 0, "comes_with": 0, "missing_library": 2}


def test_every_hint_has_one_form_and_an_extra_that_is_there():
    """Some named a library, some an extra, and each in its own words."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    found, others = set(), []
    for path in (path for name in ("transfer", "transports") for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in EXTRA_OF and isinstance(extra := node.args[EXTRA_OF[name]], ast.Constant):
                    found.add(extra.value)
                others += [
                    ast.unparse(one.value)
                    for one in node.keywords
                    if one.arg == "hint" and "pip install" in ast.unparse(one.value)
                ]
    assert len(found) > 8 and found <= extras
    assert not others
