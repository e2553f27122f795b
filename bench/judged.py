"""Targets with what a run measured: a verdict, a line of a table, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.report import number
from bench.stats import Spread


@dataclass(frozen=True, slots=True)
class Judged:
    """A target and its measurement: `measured` is to be at least (or at most) `limit`, both in `unit`."""

    name: str
    measured: Spread
    limit: float
    unit: str = "×"
    at_least: bool = True

    @property
    def hit(self) -> bool:
        median = self.measured.median
        return median >= self.limit if self.at_least else median <= self.limit

    @property
    def verdict(self) -> str:
        return "hit" if self.hit else "missed"

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {number(self.limit)} {self.unit}"

    @property
    def shown(self) -> str:
        """The median with its range: `2.03 (1.61–2.18)`."""
        spread = self.measured
        return f"{number(spread.median)} ({number(spread.low)}–{number(spread.high)})"

    @property
    def margin(self) -> Spread | None:
        """How many times better than the target; 1: just reached. None for a target or a value of 0."""
        spread, limit = self.measured, self.limit
        if limit <= 0 or spread.low <= 0:
            return None
        if self.at_least:
            return Spread(spread.median / limit, spread.low / limit, spread.high / limit)
        return Spread(limit / spread.median, limit / spread.high, limit / spread.low)


def to_json(targets: Sequence[Judged]) -> list[dict[str, Any]]:
    return [asdict(one) for one in targets]


def read(path: Path) -> tuple[list[Judged], str]:
    """Returns the targets of a JSON file, and the line about its run: date, machine, rounds."""
    document = json.loads(path.read_text(encoding="utf-8"))
    targets = [Judged(**{**one, "measured": Spread(**one["measured"])}) for one in document["targets"]]
    return targets, document["head"]
