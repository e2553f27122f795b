"""What log, spool and broker keep after crashes: recorded programs, and the states that one may leave.

See `disk_model.py` for what a crash may do, and `explore.py` to make the state of a fault again.
"""

from __future__ import annotations

import shutil

import pytest

from tests.crash import explore, programs, recorder

#: programs of the short form, and states of each
SHORT = {
    30: ("log_appends", "log_blobs", "log_discards", "log_compaction", "log_killed"),
    15: ("spool_jobs", "spool_streams"),
    10: ("broker_letters", "broker_direct"),
}
#: states of each program in the long one
LONG = 150


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: apt-get install gcc libc6-dev")
    return recorder.build(tmp_path_factory.mktemp("recorder"))


def run(library, *arguments, timeout=300.0):
    found = explore.start([*arguments], library, timeout=timeout)
    faults = [fault for report in found["reports"] for fault in report["faults"]]
    assert not faults, f"{len(faults)} faults, such as {faults[:3]}"
    return found


@pytest.mark.timeout(120)
def test_what_was_acknowledged_is_there_after_any_crash(library) -> None:
    states = 0
    for each, names in SHORT.items():
        found = run(library, *names, "--states", str(each))
        states += sum(report["states"] for report in found["reports"])
    assert states >= 150


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", programs.ALL)
def test_many_states(library, name) -> None:
    found = run(library, name, "--states", str(LONG), timeout=800)
    assert found["reports"][0]["states"] >= 100
