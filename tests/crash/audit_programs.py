"""A program of the audit, which is killed between a write and its sync too."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.crash.program import Mark, Program, steps_of
from transfer.broker.storage.audit import Audit
from transfer.broker.storage.audit_chain import Action

_NOW_MS = 1_700_000_000_000


class _Killed(BaseException):
    """The process ends here."""


class AuditProgram(Program):
    """Events of several audits one after the other on one folder."""

    def run(self, folder: Path, mark: Mark) -> None:
        numbers = count(1)
        for syncs in (0, 1, 2, 1, 2, 0):
            with Audit(folder / "data" / "audit", _NOW_MS) as audit:
                mark(("seen", len(list(audit.events()))))  # what was read once does not go
                for number in islice(numbers, 3):
                    mark(("try", (number,)))
                    audit.append(_action(number), _NOW_MS)
                    mark(("ack",))
                if syncs:
                    number = next(numbers)
                    mark(("try", (number,)))
                    _append_and_die(audit, number, syncs)

    def check(self, folder: Path, marks: list[Any], mark: Mark) -> None:
        steps, acknowledged = steps_of(marks)
        with Audit(folder / "data" / "audit", _NOW_MS) as audit:
            assert not audit.found.problems, audit.found.problems
            seen = _numbers(audit)
            assert seen == list(range(1, len(seen) + 1)), seen
            assert acknowledged <= len(seen) <= len(steps), f"{len(seen)} events, not {acknowledged}"
            mark(("seen", len(seen)))
            mark(("try", (len(seen) + 1,)))
            audit.append(_action(len(seen) + 1), _NOW_MS)
            mark(("ack",))
        with Audit(folder / "data" / "audit", _NOW_MS) as audit:
            assert not audit.found.problems, audit.found.problems
            assert len(_numbers(audit)) == len(seen) + 1


def _action(number: int) -> Action:
    return Action("me", "purge", (f"{number}",), "why " * (number % 7), [], [])


def _numbers(audit: Audit) -> list[int]:
    return [int(event.action.message_ids[0]) for event in audit.events()]


def _append_and_die(audit: Audit, number: int, syncs: int) -> None:
    """Killed in so many syncs from now."""
    left, real = [syncs], os.fsync

    def sync(fd: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise _Killed
        real(fd)

    try:
        with patch("os.fsync", sync):
            audit.append(_action(number), _NOW_MS)
    except _Killed:
        pass


PROGRAMS: dict[str, Callable[[], Program]] = {"audit": lambda: AuditProgram("audit")}
