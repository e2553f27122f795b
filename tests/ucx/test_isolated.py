"""The tests of the ucx transport, in processes that have UCX to themselves.

UCX reads its environment once, and a process that has begun it must not fork: so each file of
`isolated/` runs in a process of its own, with the transports that every machine has.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ucx.ucxx_driver import there
from transfer.transports.ucx.installed import available

FOLDER = Path(__file__).parent / "isolated"
ROOT = FOLDER.parents[2]
FILES = sorted(FOLDER.glob("isolated_*.py"))
#: these wait for connections to end, again and again
SLOW = ("isolated_interrupted",)
DRIVERS = [
    pytest.param(name, marks=pytest.mark.skipif(not found, reason=f"there is no {what} here"))
    for name, found, what in (
        ("ucxx", there(), "ucxx"),
        ("libucp", available(), "UCX (the wheel libucx, or ucx-py)"),
    )
]
pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem) for path in FILES],
)
def test_in_a_process_of_its_own(path: Path, driver: str) -> None:
    done = run(path, driver)
    passed = re.search(r"(\d+) passed", done.stdout)
    print(done.stdout[-2000:])
    assert done.returncode == 0 and passed, done.stdout[-6000:] + done.stderr[:6000] + done.stderr[-3000:]
    assert " skipped" not in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize("driver", DRIVERS)
def test_closing_in_the_middle_of_a_rendezvous(driver: str) -> None:
    done = run(FOLDER / "crash_closing.py", driver)
    if done.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        pytest.xfail("UCX crashed when an endpoint was closed in the middle of a rendezvous")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[:6000] + done.stderr[-3000:]


def run(path: Path, driver: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    environ |= {"UCX_TLS": "tcp,sm,self", "UCX_LOG_LEVEL": "error", "TRANSFER_LOCAL": "off"}
    environ["TRANSFER_TEST_UCX"] = driver
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_files=isolated_*.py crash_*.py",
    ]
    return subprocess.run(
        [*command, str(path)], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=230, check=False
    )


def test_there_are_files() -> None:
    assert len(FILES) >= 3
