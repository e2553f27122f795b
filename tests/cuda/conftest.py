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
from tests.rdma.null_provider import Missing

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
