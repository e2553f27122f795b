"""The suites of the patterns and of tensors once more, as users run them: with the local transport on.

A process of its own for each, since the other suites are about TCP and switch it off.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: how many connections by shared memory there are at least
SUITES = {
    "tests/sockets/test_push_pull.py": 20,
    "tests/sockets/test_req_rep.py": 20,
    "tests/sockets/test_pub_sub.py": 20,
    "tests/sockets/test_router_dealer.py": 10,
    "tests/sockets/test_pair.py": 5,
    "tests/sockets/test_trackers.py": 10,
    "tests/tensors/test_sockets.py": 10,
}
#: half a minute
LONGER = {
    "tests/sockets/test_threads.py": 5,
}


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("path", LONGER)
def test_longer_ones_over_shared_memory(path):
    over_shared_memory(path, LONGER[path])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("path", SUITES)
def test_over_shared_memory(path):
    over_shared_memory(path, SUITES[path])


def over_shared_memory(path, connections):
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "tests.shm.connection_count_plugin", path],
        cwd=ROOT, env=os.environ | {"TRANSFER_LOCAL": "on", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=190, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    met = re.search(r"connections by shared memory: (\d+)", done.stdout)
    assert met and int(met[1]) >= connections, done.stdout[-2000:]
