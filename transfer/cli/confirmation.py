"""Asks whether what cannot be taken back is meant."""

from __future__ import annotations

import sys


def confirmed(question: str) -> bool:
    """Whether the answer on standard input is yes. An end of input, or anything else, is a no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
