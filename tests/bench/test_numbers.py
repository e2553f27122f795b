"""Targets: every one has its line-up, and the verdict follows the numbers."""

from __future__ import annotations

import pytest

from bench.numbers import TARGETS, Target, judge, works_for
from tests.bench.line_ups import line_up

FASTER = Target("PUSH→PULL 64 B", "push_pull", "64B", 6, "pyzmq")
QUICKER = Target("round trip", "push_pull", "64B", 0.75, "pyzmq", at_least=False)


@pytest.mark.parametrize("quick", [True, False])
def test_every_target_has_a_line_up_with_both_peers(quick: bool) -> None:
    works = works_for(TARGETS, quick)
    for target in TARGETS:
        assert any(
            work.case == target.case
            and target.ours in work.peers
            and (not target.theirs or target.theirs in work.peers)
            for work in works
        ), target.text


def test_a_line_up_runs_once_for_all_its_targets() -> None:
    works = works_for(TARGETS, quick=False)
    keys = [(work.case, work.label, work.count) for work in works]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("target", "ours", "theirs", "verdict"),
    [
        (FASTER, [6.0, 7.0, 8.0], [1.0, 1.0, 1.0], "hit"),
        (FASTER, [5.0, 5.9, 8.0], [1.0, 1.0, 1.0], "missed"),
        (QUICKER, [0.7], [1.0], "hit"),
        (QUICKER, [0.8], [1.0], "missed"),
    ],
)
def test_verdict(target: Target, ours: list[float], theirs: list[float], verdict: str) -> None:
    (row,) = judge([target], [line_up({"transfer": ours, "pyzmq": theirs})])
    assert row.verdict == verdict
    assert row.cpu == 1.0


def test_a_lost_message_is_a_miss_however_fast_it_was() -> None:
    (row,) = judge([FASTER], [line_up({"transfer": [60.0], "pyzmq": [1.0]}, lost=1)])
    assert row.verdict == "missed: 1 messages lost"


def test_an_absent_peer_is_told_with_its_reason() -> None:
    made = line_up({"pyzmq": [1.0]}, absent={"transfer": "skipped: no core"})
    (row,) = judge([FASTER], [made])
    assert row.measured is None
    assert row.verdict == "transfer skipped: no core"


def test_a_target_of_its_own_number() -> None:
    target = Target("growth", "memory", "64MiB", 3, key="grown_messages", at_least=False)
    made = line_up({"transfer": [1.0, 2.0, 9.0]}, case="memory", label="64MiB", key="grown_messages")
    (row,) = judge([target], [made])
    assert row.verdict == "hit"


def test_what_was_not_run_is_said() -> None:
    (row,) = judge([FASTER], [])
    assert row.verdict == "not run"
