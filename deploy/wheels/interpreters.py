"""Finds the interpreters of this machine. Their headers are those that wheels are built with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: seconds for an interpreter to say what it is
_LIMIT = 30
#: prints its path if it is of the version, free-threaded or not, and has its headers
_PROBE = """
import sys, sysconfig, pathlib
version = "%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
if version == sys.argv[1] and header.exists() and sys.implementation.name == "cpython":
    print(sys.executable)
"""


def find_interpreter(version: str) -> Path | None:
    """Returns CPython of a version ("3.12", or "3.14t" for the free-threaded one) with its headers, or None.

    It is looked for in PATH, and among pyenv's, whose commands are in PATH only where they were chosen.
    """
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates += sorted(map(str, pyenv.glob(f"*/bin/python{version}")), reverse=True)
    for candidate in filter(None, candidates):
        try:
            done = subprocess.run(
                [candidate, "-I", "-c", _PROBE, version],
                capture_output=True, text=True, check=False, timeout=_LIMIT,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            return Path(done.stdout.strip())
    return None
