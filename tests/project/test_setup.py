"""What `make setup` installs, and what it leaves out on a Python for which there is no torch or pyspark."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.requirements import name_of, requirements

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def printed(*arguments):
    command = [sys.executable, "tests/requirements.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout.splitlines()


def test_an_extra_brings_what_others_bring():
    declared = {
        "one": ["a>=1", "tensor-transfer[two,three]"],
        "two": ["b; x"],
        "three": ["tensor-transfer[two]", "c"],
    }
    assert requirements(["one"], declared) == {"a>=1", "b; x", "c"}


def test_all_that_development_needs_is_printed():
    lines = printed("dev", "bench")
    assert {"torch", "torchdata", "pyspark", "pytest", "Cython"} <= {Requirement(one).name for one in lines}
    direct = [
        one for extra in ("dev", "bench") for one in DECLARED[extra] if name_of(one) != "tensor-transfer"
    ]
    assert set(direct) <= set(lines)


def test_what_cannot_be_had_is_left_out_with_what_needs_it():
    everything, rest = printed("dev", "bench"), printed("dev", "bench", "--without", "torch", "pyspark")
    assert {name_of(one) for one in set(everything) - set(rest)} == {"torch", "torchdata", "pyspark"}
    assert printed("dev", "--only", "pyspark") == [one for one in everything if name_of(one) == "pyspark"]


@pytest.mark.parametrize("target", ["setup", "wheels", "test-pythons", "test-aarch64"])
def test_the_commands_are_there(target):
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout
