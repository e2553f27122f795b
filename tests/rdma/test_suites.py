"""The suites of patterns, tensors and faults over rdma, on the null provider: in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.rdma import suites_plugin
from tests.rdma.ends import devices
from tests.rdma.null_provider import ROOT


def run(suites: tuple[str, ...], seconds: float) -> int:
    """The number of tests that ran over rdma."""
    files = [f"tests/{name}.py" for name in suites]
    options = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "tests.rdma.suites_plugin")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    [over] = re.findall(r"^over rdma: (\d+) tests", ran.stdout, re.MULTILINE)
    return int(over)


@pytest.mark.skipif(bool(devices()), reason="there is a device: `make test-rdma` runs them on it")
@pytest.mark.timeout(200)
def test_patterns_and_tensors_over_rdma() -> None:
    assert run(suites_plugin.SUITES, 180) > 90


@pytest.mark.skipif(bool(devices()), reason="there is a device: `make test-rdma` runs them on it")
@pytest.mark.timeout(300)
def test_faults_and_life_cycles_over_rdma() -> None:
    assert run(suites_plugin.MORE, 280) > 100
