"""Runs one step of a build: its output goes to a file, whose last lines are the text of an error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: seconds for one step
_LIMIT = 1800


class StepFailed(Exception):
    """A step of the build failed. Its text ends with the last lines of the step's output."""


def run_step(command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
    """Runs a step. Raises StepFailed."""
    with log.open("ab") as output:
        try:
            subprocess.run(
                command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                check=True, timeout=_LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"took more than {_LIMIT} s; {log}") from error
        except subprocess.CalledProcessError as error:
            last = log.read_text(errors="replace").splitlines()[-30:]
            raise StepFailed("\n".join([f"failed ({error.returncode}); {log} ends with:", *last])) from error
