"""Medians, percentiles and ratios of samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was really measured. `values` must not be empty."""
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few runs, and how far they lay apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    @property
    def percent(self) -> float:
        """(highest − lowest) in percent of the median."""
        return 100 * (self.high - self.low) / self.median if self.median else 0.0


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """ours ÷ theirs, run by run: run n of both lies in the same moment of the machine's life.

    None when a run is missing, or when theirs is 0.
    """
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs or any(their == 0 for _, their in pairs):
        return None
    return Spread.of([our / their for our, their in pairs])
