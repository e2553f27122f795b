"""A command as a container's first process: SIGTERM ends it, which the kernel else keeps from process 1."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="process namespaces need root and util-linux"
)


def test_sigterm_ends_a_command_that_is_process_1():
    command = [sys.executable, "-m", "transfer", "pull", "--bind", "tcp://127.0.0.1:0"]
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command],
        cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as outer:  # fmt: skip
        try:
            assert outer.stderr is not None
            assert any(line.startswith("bound to ") for line in iter(outer.stderr.readline, ""))
            first = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
            os.kill(first, signal.SIGTERM)
            assert outer.wait(20) == 130
        finally:
            outer.kill()
