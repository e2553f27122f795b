"""How the tests are divided among processes: `tests/workers.py` in small runs of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


class Worker:
    """What the scheduler asks of one, without its process."""

    shutting_down = False
    gateway = SimpleNamespace(id="a worker")

    def __init__(self) -> None:
        self.told: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_what_a_dead_worker_leaves_waits_for_one_that_knows_the_tests() -> None:
    pytest.importorskip("xdist", reason="pip install pytest-xdist")
    tests = ["a.py::one", "a.py::two", "b.py::three"]
    config = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=True), getvalue=lambda name: ["popen", "popen"]
    )
    scheduler = workers.pytest_xdist_make_scheduler(config, None)  # type: ignore[arg-type]
    first, second, new = Worker(), Worker(), Worker()
    for worker in (first, second):
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    assert (first.told, second.told) == ([0, 1], [2])
    assert scheduler.remove_node(second) == "b.py::three"
    scheduler.add_node(new)  # it runs, and does not know its tests yet
    assert scheduler.remove_node(first) == "a.py::one"
    assert not new.told and not new.shutting_down
    scheduler.add_node_collection(new, tests)
    scheduler.schedule()
    assert new.told == [1]


@pytest.mark.timeout(180)
def test_a_worker_that_dies_takes_one_test_with_it(tmp_path) -> None:
    """One test hangs, one ends its process: both are told, and all others run, once."""
    pytest.importorskip("xdist", reason="pip install pytest-xdist")
    (tmp_path / "test_first.py").write_text(FIRST)
    (tmp_path / "test_second.py").write_text(SECOND)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "tests.rdma.vm_plugin", "-p", "tests.workers",
         "."],
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
