"""How commands end: exit codes, and an output without a reader."""

from __future__ import annotations

import os
import sys

#: exit codes for shell scripts
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


def silence_output() -> None:
    """Redirects standard output, so that Python's flush at exit raises no error about the pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
