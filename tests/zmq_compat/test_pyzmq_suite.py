"""pyzmq's own tests on `transfer.zmq`: all pass, except those that stand in pyzmq_suite/expected.txt.

They come from pyzmq's source distribution, since its wheels have none; pip fetches it once, and Tornado and
gevent with it, below build/pyzmq_suite. Nothing of it is part of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build/pyzmq_suite"
EXPECTED = Path(__file__).parent / "pyzmq_suite/expected.txt"
VERSION = "27.3.0"
#: their versions decide which tests of ZMQStream and zmq.green there are
LIBRARIES = ("tornado==6.6.1", "gevent==26.9.0")
#: seconds for all of the tests
LIMIT = 600
#: as many pass at least
PASSED = 370

OUTCOMES = ("failed", "skipped", "left-out", "varies")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT + 240)]


def expected():
    """Returns {name: outcome} of the tests that do not pass. A reason stands above the lines it is for."""
    lines = [line for line in EXPECTED.read_text().splitlines() if line]
    assert lines[0].startswith("# ")
    pairs = [line.split(" ", 1) for line in lines if not line.startswith("# ")]
    outcomes = {name: outcome for outcome, name in pairs}
    assert len(outcomes) == len(pairs)
    assert set(outcomes.values()) <= set(OUTCOMES)
    return outcomes


def pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"pip cannot fetch pyzmq's source distribution: {done.stderr[-300:]}")


@pytest.fixture(scope="module")
def suite():
    """The folder of pyzmq's tests."""
    try:
        found = metadata.version("pyzmq")
    except metadata.PackageNotFoundError:
        pytest.skip("pyzmq is not installed")
    if found != VERSION:
        pytest.skip(f"expected.txt is for pyzmq {VERSION}, and {found} is installed")
    tests = PLACE / f"pyzmq-{VERSION}/tests"
    if not (PLACE / "done").exists():
        pip("install", "--target", PLACE / "libraries", *LIBRARIES)
        pip("download", "--no-deps", "--no-binary", "pyzmq", "--dest", PLACE, f"pyzmq=={VERSION}")
        with tarfile.open(PLACE / f"pyzmq-{VERSION}.tar.gz") as archive:
            archive.extractall(PLACE, filter="data")
        (PLACE / "done").touch()
    return tests


def run(suite, results, left_out, asked=(".",)):
    """Runs the tests, and returns {name: (outcome, reason)}. asked: files or tests."""
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PLACE / "libraries"))),
        "RESULTS": str(results),
        # what pyzmq's programs may do, and ours only when they ask for it
        "TRANSFER_UNAUTHENTICATED": "allow",
    }
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider",
        "-p", "tests.zmq_compat.pyzmq_suite.plugin", "--continue-on-collection-errors",
        "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function",
        "--timeout", "20", "--timeout-method", "signal",
    ]  # fmt: skip
    for name in left_out:
        command += ["--deselect" if "::" in name else "--ignore", name]
    output = results.with_suffix(".txt")
    with output.open("w") as out:
        process = subprocess.Popen(
            [*command, *asked], cwd=suite, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LIMIT)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    # 1: some failed
    assert code in (0, 1), output.read_text()[-4000:]
    rows = map(json.loads, results.read_text().splitlines())
    return {name: (outcome, reason) for name, outcome, reason in rows}


def test_all_pass_but_the_expected(suite, tmp_path):
    wanted = expected()
    found = run(
        suite, tmp_path / "results.json", [n for n, outcome in wanted.items() if outcome == "left-out"]
    )
    for name, outcome in wanted.items():
        if outcome == "varies":
            found.pop(name)
    failed = [name for name, (outcome, _) in found.items() if outcome == "failed" and name not in wanted]
    if failed:  # some of them give a message 5 ms
        found.update(run(suite, tmp_path / "again.json", (), failed))
    bad = {name: outcome for name, (outcome, _) in found.items() if outcome != "passed"}
    due = {name: outcome for name, outcome in wanted.items() if outcome in ("failed", "skipped")}
    surprises = sorted(bad.items() ^ due.items())
    assert not surprises, "\n".join(
        f"{name}: {found.get(name, ('not run', ''))}, expected {wanted.get(name, 'passed')}"
        for name in dict(surprises)
    )
    assert sum(outcome == "passed" for outcome, _ in found.values()) >= PASSED
