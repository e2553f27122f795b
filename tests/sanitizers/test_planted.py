"""A run on a sanitizer fails for each planted fault of a child, and passes without one."""

from __future__ import annotations

import sys

import pytest

from tests.sanitizers import run
from tests.sanitizers.run import SANITIZERS, Missing, check_planted, libraries, watched


@pytest.fixture(params=sorted(SANITIZERS))
def sanitizer(request):
    found = SANITIZERS[request.param]
    try:
        libraries(found)
    except Missing as missing:
        pytest.skip(str(missing))
    return found


def test_a_fault_of_a_child_fails_the_run(sanitizer):
    check_planted(sanitizer)


def test_a_program_without_a_fault_passes(sanitizer, tmp_path):
    assert watched(sanitizer, [sys.executable, "-c", "pass"], tmp_path, 60) == (0, "")


def test_a_sanitizer_that_is_not_loaded_fails_the_run(sanitizer, monkeypatch):
    monkeypatch.setattr(run, "libraries", lambda _: [])
    with pytest.raises(Missing, match="does not report a planted"):
        check_planted(sanitizer)
