"""Medians, percentiles, ratios."""

from __future__ import annotations

from hypothesis import given, strategies as st

from bench.stats import Spread, percentile, ratio


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert percentile(values, 50) == 500
    assert percentile(values, 99) == 990
    assert percentile(values, 99.9) == 999
    assert percentile(values, 100) == 1000
    assert percentile([7.0], 99.9) == 7.0


@given(st.lists(st.floats(0.1, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_never_leaves_the_values(values: list[float], percent: float) -> None:
    assert percentile(values, percent) in values


def test_spread() -> None:
    spread = Spread.of([4.0, 1.0, 2.0])
    assert (spread.median, spread.low, spread.high) == (2.0, 1.0, 4.0)
    assert spread.percent == 150.0


def test_ratio_divides_round_by_round() -> None:
    # the machine got twice as slow in the second round, for both: the ratio does not see it
    assert ratio([6.0, 3.0, 6.0], [2.0, 1.0, 2.0]) == Spread(3.0, 3.0, 3.0)


def test_no_ratio_without_both() -> None:
    assert ratio([], [1.0]) is None
    assert ratio([1.0], [0.0]) is None
