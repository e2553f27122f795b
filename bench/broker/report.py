"""The results of a run, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.broker.case import Case, Goal, Sample
from bench.judged import Judged, to_json
from bench.machine import one_line
from bench.report import number
from bench.stats import Spread, ratio
from transfer.cli.tables import show_table

#: by case and peer; a text is the reason why it was not measured
Found = Mapping[str, Mapping[str, Sequence[Sample] | str]]

_PEERS = ("case", "peer", "median", "low", "high", "unit", "broker µs/msg")
_GOALS = ("goal", "wanted", "measured", "verdict")
_OURS = "transfer"


def peer_rows(case: Case, found: Found) -> list[tuple[str, ...]]:
    """Returns one row for each peer."""
    rows = []
    for peer in case.peers:
        samples = found[case.name].get(peer.name, "not run")
        if isinstance(samples, str):
            rows.append((case.name, peer.name, samples, "", "", "", ""))
            continue
        spread = Spread.of([sample[case.key] for sample in samples])
        cpu = [sample["cpu_us"] for sample in samples if "cpu_us" in sample]
        each = number(Spread.of(cpu).median) if cpu else ""
        cells = (number(value) for value in (spread.median, spread.low, spread.high))
        rows.append((case.name, peer.name, *cells, case.unit, each))
    return rows


def judge(case: Case, cases: Mapping[str, Case], found: Found) -> list[Judged]:
    """Returns the goals of a case that can be judged, with what was measured."""
    judged = []
    for goal in case.goals:
        measured = _measured(case, goal, cases, found)
        if measured is not None:
            against = f" against {goal.against}{f' of {goal.of}' * bool(goal.of)}"
            name = case.name + (against if goal.against else f", {goal.key}")
            judged.append(Judged(name, measured, goal.limit, goal.unit, goal.at_least))
    return judged


def judge_all(cases: Sequence[Case], found: Found) -> list[Judged]:
    """Returns the goals of all cases that were run."""
    by_name = {case.name: case for case in cases}
    return [one for case in cases if case.name in found for one in judge(case, by_name, found)]


def _measured(case: Case, goal: Goal, cases: Mapping[str, Case], found: Found) -> Spread | None:
    ours = _best(case, _OURS, goal, found)
    if not goal.against:
        return Spread.of(ours) if ours else None
    other = cases[goal.of or case.name]
    return ratio(ours, _best(other, goal.against, goal, found)) if ours else None


def _best(case: Case, family: str, goal: Goal, found: Found) -> list[float]:
    """Returns for each round the better one of all peers of a family."""
    runs = []
    for peer in case.peers:
        samples = found.get(case.name, {}).get(peer.name, "not run")
        if peer.family == family and not isinstance(samples, str):
            runs.append([sample[goal.key] for sample in samples])
    better = max if goal.at_least else min
    return [better(values) for values in zip(*runs, strict=False)]


def show(cases: Sequence[Case], found: Found) -> None:
    """Prints both tables."""
    rows = [row for case in cases if case.name in found for row in peer_rows(case, found)]
    show_table(_PEERS, rows, right=("median", "low", "high", "broker µs/msg"))
    print()
    goals = [(one.name, one.wanted, one.shown, one.verdict) for one in judge_all(cases, found)]
    show_table(_GOALS, goals)


def head_of(machine: Mapping[str, Any], rounds: int) -> str:
    """Returns the line over a picture: date, rounds and machine."""
    return f"{machine['when'][:10]}, rounds: {rounds}. {one_line(dict(machine))}"


def write(file: Path, machine: Mapping[str, Any], cases: Sequence[Case], found: Found, rounds: int) -> None:
    """Writes all samples and verdicts as JSON."""
    data = {
        "format": 1,
        "head": head_of(machine, rounds),
        "machine": machine,
        "cases": found,
        "targets": to_json(judge_all(cases, found)),
    }
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
