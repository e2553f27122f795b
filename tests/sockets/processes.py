"""Programs that tests start as processes of their own, to stop or kill them.

Run as `python -m` would be: each is a function; `start` gives the process and its output lines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """A Python program in a process; ended when its with-statement ends."""

    def __init__(self, source, *arguments, core="pure", **environment):
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "TRANSFER_CORE": core, "PYTHONPATH": path, **environment}
        env.pop("PYTHONWARNINGS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True,
        )  # fmt: skip

    def line(self):
        """The next line it prints; its errors if it prints none."""
        text = self.process.stdout.readline().strip()
        assert text, self.process.stderr.read()
        return text

    def tell(self, text=""):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def finish(self, seconds=20):
        """(exit code, the rest of its output, its errors)."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        with contextlib.suppress(ValueError, BrokenPipeError):
            self.process.communicate()
