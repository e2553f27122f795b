"""Says at the end of a run how many tests ran on real verbs: for it the virtual machine is one test."""

from __future__ import annotations

from typing import Any

import pytest

#: (tests that ran in the virtual machine, those that were skipped in it, seconds)
RAN = pytest.StashKey[tuple[int, int, float]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ran = config.stash.get(RAN, None)
    if ran is not None:
        terminalreporter.write_line(
            f"on real verbs: {ran[0]} tests passed, {ran[1]} skipped, in {ran[2]:.0f} s of a virtual machine"
        )
