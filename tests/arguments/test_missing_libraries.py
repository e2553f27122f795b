"""A module that needs a library which is not there names it, and the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
