"""How the tests are divided among processes: `tests/workers.py` in small runs of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import workers

ROOT = Path(__file__).parents[2]

FIRST = """
import os, time, pytest

@pytest.mark.timeout(1)
def test_hangs():
    print("said before")
    time.sleep(50)

def test_after_it():
    time.sleep(0.01)
"""
SECOND = """
import os, pytest

@pytest.mark.parametrize("turn", range(20))
def test_another(turn):
    assert turn != 7

def test_dies():
    os._exit(3)
"""


def test_groups() -> None:
    assert all((ROOT / folder).is_dir() for folder in workers.TOGETHER)
    assert workers.group("tests/log/test_log.py::Kept::test_it[a::b]") == "tests/log/test_log.py"
    one, other = (workers.group(f"tests/spark/test_{name}.py::test_it") for name in ("write", "read"))
    assert one == other
    alone = "tests/rdma/test_vm.py::test_on_real_verbs"
    assert workers.group(alone) != workers.group("tests/rdma/test_vm.py::test_another")


@pytest.mark.timeout(180)
def test_a_worker_that_dies_takes_one_test_with_it(tmp_path) -> None:
    """One test hangs, one ends its process: both are told, and all others run, once."""
    pytest.importorskip("xdist", reason="pip install pytest-xdist")
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.rdma.beside", "-p", "tests.workers", "."],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    failed = sorted(re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE))
    assert failed == [
        f"test_{name}"
        for name in ("first.py::test_hangs", "second.py::test_another[7]", "second.py::test_dies")
    ]
    assert re.search(r"^=+ 3 failed, 20 passed in ", done.stdout, re.MULTILINE), told
    assert "+++ test_first.py::test_hangs took more than 1 s +++" in done.stderr
    assert "said before" in done.stderr and "time.sleep(50)" in done.stderr
