"""What a recorded program is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Mark = Callable[[Any], None]


class Program:
    """Something that keeps data in a folder, and knows what has to be there after a crash.

    delay: microseconds that a sync takes while it is recorded.
    """

    delay = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, folder: Path, mark: Mark) -> None:
        """The program. It marks what it tries before it does, and what it was answered."""
        raise NotImplementedError

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        """Opens the folder, compares, goes on with it, and opens it again. Marks too, for a second crash.

        Raises AssertionError, or what the product raises.
        """
        raise NotImplementedError


def steps_of(marks: list[Any]) -> tuple[list[tuple[Any, ...]], int]:
    """What was tried, and how much of it was acknowledged, or was seen behind a crash."""
    steps: list[tuple[Any, ...]] = []
    acknowledged = 0
    for kind, *rest in marks:
        if kind == "try":
            steps.append(rest[0])
        elif kind == "ack":
            acknowledged = len(steps)
        else:
            acknowledged = rest[0]
            del steps[acknowledged:]
    return steps, acknowledged
