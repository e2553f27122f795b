"""Mooncake's own example of its communicator, unchanged, on ZmqInterface.

It is mooncake-transfer-engine/tests/zmq_communicator_example.py in the history of kvcache-ai/Mooncake, and
UPSTREAM_EXAMPLE names a copy of it. Nothing of it is part of this project.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILE = os.environ.get("UPSTREAM_EXAMPLE")
ROOT = Path(__file__).parents[2]
#: a network of its own: it binds well-known ports
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not FILE, reason="UPSTREAM_EXAMPLE names no copy of the example"),
]


def test_all_of_it_passes(tmp_path):
    needed = all(map(shutil.which, ("unshare", "ip")))
    if not needed or subprocess.run([*ALONE, "true"], timeout=20).returncode:
        pytest.skip(
            "no network namespaces here: they need util-linux, iproute2, and a kernel that allows them"
        )
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/__init__.py").touch()  # else an installed Mooncake is found first
    names = "ZmqConfig, ZmqInterface, ZmqSocketType"
    (tmp_path / "mooncake/engine.py").write_text(f"from transfer import {names}\n")
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, tmp_path))),
        "TRANSFER_UNAUTHENTICATED": "allow",
        "MOONCAKE_ALLOW_PICKLE": "1",
    }
    with (tmp_path / "output.txt").open("w") as out:
        subprocess.run(
            [*ALONE, sys.executable, FILE], env=environ, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, timeout=150, check=True,
        )  # fmt: skip
    output = (tmp_path / "output.txt").read_text()
    assert re.findall(r"^(Passed|Failed): (\d+)", output, re.MULTILINE) == [("Passed", "13"), ("Failed", "0")]
