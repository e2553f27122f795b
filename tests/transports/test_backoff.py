"""Pauses between attempts."""

from __future__ import annotations

from hypothesis import given, strategies as st

from transfer.transports.connect.backoff import Backoff


def test_doubles_up_to_the_limit():
    backoff = Backoff(0.1, 1.0, lambda: 1.0)
    assert [round(backoff.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.lasted(0.9)
    assert backoff.next() == 1.0, "it was dropped soon"
    backoff.lasted(1.0)
    assert backoff.next() == 0.1


def test_without_a_limit_it_does_not_grow():
    backoff = Backoff(0.1, 0.0, lambda: 1.0)
    assert [backoff.next() for _ in range(3)] == [0.1, 0.1, 0.1]


@given(st.floats(0, 10), st.floats(0, 100), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_every_pause_is_a_random_part_of_its_range(first, limit, draws):
    given_draws = iter(draws)
    backoff = Backoff(first, limit, lambda: next(given_draws))
    span = first
    for draw in draws:
        assert backoff.next() == span * draw
        span = min(max(first, limit), span * 2)
