"""Detects whether this process is a fork of the one in which an object was made."""

from __future__ import annotations

import os

from transfer.transports.errors import ForkedError

#: forks between the start of the program and this process, counted since `watch`
generation = 0
_watching = False


def _count() -> None:
    global generation
    generation += 1


def watch() -> None:
    """Counts forks from now on. Called for the first flusher, since an import has no effects."""
    global _watching
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_count)


def refuse() -> ForkedError:
    return ForkedError(
        "this socket was made before the process forked",
        hint="make a new Context in the child, or start children with spawn or forkserver",
    )
