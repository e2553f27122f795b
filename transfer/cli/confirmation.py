"""Asks for confirmation of irreversible operations."""

from __future__ import annotations

import sys


def confirmed(question: str) -> bool:
    """Asks, and returns whether the answer on standard input is yes. Anything else, or its end, is a no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
