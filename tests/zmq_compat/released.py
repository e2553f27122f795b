"""What the tests of released programs have in common: pip fetches them once, `transfer as-zmq` runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: seconds for one program
LIMIT = 120


def fetched(name, *sets):
    """The folder build/NAME, in which pip has installed each of the sets: words of `pip install`."""
    place = ROOT / "build" / name
    if not (place / "done").exists():
        for words in sets:
            command = ["-m", "pip", "--disable-pip-version-check", "-q", "install", "--target", place, *words]
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
            )
            if done.returncode:
                pytest.skip(f"pip cannot fetch them: {done.stderr[-300:]}")
        (place / "done").touch()
    return place


def started(programs, folder, *words, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "transfer", "as-zmq", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, programs)))} | variables,
        cwd=folder,
        start_new_session=True,
    )


def ended(process, limit=LIMIT):
    """(exit code, output) within the limit."""
    try:
        output, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output
