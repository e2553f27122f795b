"""Medians, percentiles and ratios of samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the nearest-rank percentile: a measured value. `values` must not be empty."""
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few runs, and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    @property
    def percent(self) -> float:
        """The range (highest − lowest) in percent of the median."""
        return 100 * (self.high - self.low) / self.median if self.median else 0.0


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Returns ours ÷ theirs, run by run: run n of both is at the same time.

    None when a run is missing, or when theirs is 0.
    """
    pairs = list(zip(ours, theirs, strict=False))
    if not pairs or any(their == 0 for _, their in pairs):
        return None
    return Spread.of([our / their for our, their in pairs])
