"""Line-ups made up for the tests of tables, targets and baselines."""

from __future__ import annotations

from bench.run import LineUp
from bench.work import Case, Sample, Work, by_size


def _never(work: Work, peer: str) -> Sample:
    raise AssertionError("a made-up line-up is not measured")


def line_up(
    values: dict[str, list[float]],
    *,
    case: str = "push_pull",
    label: str = "64B",
    key: str = "msg_s",
    lost: int = 0,
    absent: dict[str, str] | None = None,
) -> LineUp:
    """`values` are the rounds of each peer for `key`; every sample claims `lost` lost messages."""
    peers = (*values, *(absent or {}))
    work = Work(case, label, 64, 1000, 10, peers)
    made = LineUp(Case(case, "made up", lambda _: [work], _never, by_size), work)
    made.samples = {
        peer: [{key: value, "cpu_s": 2.0, "cpu_s_per_m": 1.0, "lost": lost} for value in rounds]
        for peer, rounds in values.items()
    }
    made.absent = dict(absent or {})
    return made
