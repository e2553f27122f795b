"""Programs with the null driver. The core loads one driver for good, so each has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cuda import null_driver
from tests.rdma import null_provider
from tests.rdma.null_provider import Missing
from transfer.transports.ucx.installed import available

_numbers = count()
_ROOT = Path(__file__).parents[2]
Run = Callable[..., str]


@pytest.fixture
def null_name() -> str:
    """NULL_CUDA_NAME of a test."""
    return f"nc{os.getpid()}_{next(_numbers)}"


@pytest.fixture
def run(tmp_path: Path, null_name: str) -> Iterator[Run]:
    """`run(program, **variables)`: what a program prints that has the null driver. It may leave nothing."""
    try:
        library = null_driver.build()
    except Missing as missing:
        pytest.skip(str(missing))

    def run(program: str, *arguments: str, status: int = 0, **variables: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(program)
        environ = os.environ | {"TRANSFER_LIBCUDA": str(library), "NULL_CUDA_NAME": null_name}
        environ |= {"PYTHONPATH": str(_ROOT), "TRANSFER_LOCAL": "on"} | variables
        done = subprocess.run(
            [sys.executable, path, *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "ignored in" not in done.stderr, done.stderr  # an exception in a finalizer
        return done.stdout

    yield run
    assert null_driver.left(null_name) == []


@pytest.fixture
def run_by_card(run, null_name):
    """`run`, with a card."""
    name = f"null_card-{null_name}"
    try:
        variables = null_provider.environment(name)
    except null_provider.Missing as missing:
        pytest.skip(str(missing))
    variables |= {"TRANSFER_LOCAL": "off", "MC_RPC_PROTOCOL": "rdma"}
    variables["PYTHONPATH"] = f"{null_provider.IN_CHILDREN}:{null_provider.ROOT}"

    def started(program, **more):
        return run(program, **(variables | more))

    yield started
    null_provider.NullProvider(name).remove_killed()
    assert not null_provider.NullProvider(name).left()


@pytest.fixture
def run_by_ucx(run, tmp_path):
    """`run`, where UCX finds the null driver, too."""
    if not available():
        pytest.skip("no UCX: pip install libucx-cu12")
    null_driver.link(tmp_path)
    variables = {"TRANSFER_LOCAL": "off", "MC_RPC_PROTOCOL": "ucx", "LD_LIBRARY_PATH": str(tmp_path)}
    variables["NULL_CUDA_UCX"] = "1"

    def started(program, **more):
        return run(program, **(variables | more))

    return started
