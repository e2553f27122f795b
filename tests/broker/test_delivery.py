"""Deliveries move along their table only; pauses grow and are bounded; timers forget what was cancelled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.core.delivery import TRANSITIONS, DirectDelivery, RetryPolicy, Status
from transfer.broker.core.timers import Timers
from transfer.transports.errors import InternalError, OptionError


def delivery(status=Status.DISPATCHED):
    return DirectDelivery(7, "m", "c", "s", "t", 2, 1.0, 31.0, status)


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_only_what_the_table_allows(before, after):
    one = delivery(before)
    if after in TRANSITIONS[before]:
        one.move(after)
        assert one.status is after
    else:
        with pytest.raises(InternalError, match="cannot go"):
            one.move(after)
        assert one.status is before


def test_what_is_over_stays_over():
    assert not TRANSITIONS[Status.ACKED] and not TRANSITIONS[Status.DEAD_LETTERED]
    assert all(Status.DISPATCHED not in after for after in TRANSITIONS.values())


def test_an_id_names_the_try():
    one = delivery()
    other = DirectDelivery(7, "m", "c", "s", "t", 3, 1.0, 31.0)
    assert one.delivery_id != other.delivery_id


def test_pauses_of_the_default_policy():
    policy = RetryPolicy()
    assert [policy.delay(attempt, lambda: 0.0) for attempt in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert [policy.exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]


@given(
    attempt=st.integers(1, 10_000),
    initial=st.floats(0, 10),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    random=st.floats(0, 1),
)
@settings(max_examples=100)
def test_a_pause_is_bounded_and_never_shrinks_by_more_than_its_jitter(
    attempt, initial, factor, jitter, random
):
    policy = RetryPolicy(initial=initial, factor=factor, limit=10.0, jitter=jitter)
    whole = policy.delay(attempt, lambda: 0.0)
    pause = policy.delay(attempt, lambda: random)
    assert 0 <= pause <= whole <= 10.0
    assert pause >= whole * (1 - jitter) - 1e-9
    assert whole >= policy.delay(max(attempt - 1, 1), lambda: 0.0)


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"initial": -1}, {"limit": 0.01}, {"factor": 0.5}, {"jitter": 1.5}]
)
def test_policies_that_make_no_sense(wrong):
    with pytest.raises(OptionError):
        RetryPolicy(**wrong)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("due"), st.integers(1, 4), st.integers(0, 20)),
        )
    )
)
@settings(max_examples=150)
def test_timers_against_a_dict(steps):
    timers, model = Timers(), {}
    for what, key, when in steps:
        if what == "set":
            timers.set(key, when)
            model[key] = when
        elif what == "cancel":
            assert timers.cancel(key) == (model.pop(key, None) is not None)
        else:
            found = timers.due(when, key)
            ready = sorted(time for time in model.values() if time <= when)
            assert [model[one] for one in found] == ready[:key]
            for one in found:
                del model[one]
        assert len(timers) == len(model)
        assert timers.first() == min(model.values(), default=None)


def test_timers_that_are_set_again_and_again_take_no_room():
    timers = Timers()
    for when in range(10_000):
        timers.set("heartbeat", when)
    assert len(timers._heap) < 100
    assert timers.due(9_998, 10) == [] and timers.due(9_999, 10) == ["heartbeat"]
