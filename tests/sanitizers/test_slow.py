"""Each group of tests on each sanitizer (groups.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sanitizers.groups import GROUPS
from tests.sanitizers.run import ROOT, SANITIZERS, Missing, libraries

#: seconds for a group, its build with it: on a quiet machine it takes a fifth
TIMEOUT = 3000


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize(("name", "group"), [(name, group) for name in GROUPS for group in GROUPS[name]])
def test_a_group_on_a_sanitizer(name: str, group: str) -> None:
    try:
        libraries(SANITIZERS[name])
    except Missing as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitizers.run", name, group],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
