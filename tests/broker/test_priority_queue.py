"""Classes of priority share by weight, nobody starves, order is kept within a class."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.core.priority_queue import WEIGHTS, PriorityQueue, class_of
from transfer.transports.errors import OptionError

NAMES = list(WEIGHTS)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from(NAMES), st.integers(0, 30)),
            st.tuples(st.just("discard"), st.sampled_from(NAMES), st.integers(0, 30)),
            st.tuples(st.just("take"), st.just(""), st.just(0)),
        ),
        max_size=80,
    )
)
@settings(max_examples=200)
def test_against_sets(steps):
    """What is taken is the lowest number of its class; nothing is invented, lost, or taken twice."""
    queue, model = PriorityQueue(), {name: set() for name in NAMES}
    of = {}
    for what, name, number in steps:
        if what == "take":
            taken = queue.take()
            if taken is None:
                assert not any(model.values())
                continue
            assert taken == min(model[of[taken]])
            model[of[taken]].discard(taken)
        else:
            name = of.setdefault(number, name)  # a message does not change its class
            if what == "put":
                queue.put(number, name)
                model[name].add(number)
            else:
                assert queue.discard(number, name) == (number in model[name])
                model[name].discard(number)
        assert len(queue) == sum(map(len, model.values()))
        assert set(queue) == set().union(*model.values())


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=50)
def test_shares_are_exact_while_all_wait(weights):
    queue, of = PriorityQueue(weights), {}
    total = sum(weights.values())
    for number in range(3 * total * len(weights)):
        of[number] = list(weights)[number % len(weights)]
        queue.put(number, of[number])
    for _ in range(3):
        assert Counter(of[queue.take()] for _ in range(total)) == Counter(weights)


def test_the_lightest_class_waits_one_round_at_most():
    queue = PriorityQueue()
    queue.put(0, "bulk")
    for number in range(1, 100):
        queue.put(number, "operator")
    taken = [queue.take() for _ in range(9)]
    assert 0 in taken


def test_a_class_that_was_empty_is_owed_nothing():
    queue = PriorityQueue({"a": 1, "b": 1})
    for number in range(100):
        queue.put(number, "a")
    for _ in range(50):
        queue.take()
    for number in range(200, 260):
        queue.put(number, "b")
    first = [queue.take() for _ in range(10)]
    assert sum(number >= 200 for number in first) == 5


def test_what_comes_back_takes_its_old_place():
    queue = PriorityQueue()
    for number in (1, 2, 3):
        queue.put(number, "normal")
    assert queue.take() == 1
    queue.put(1, "normal")
    assert [queue.take() for _ in range(3)] == [1, 2, 3]


def test_stale_entries_take_no_room():
    queue = PriorityQueue()
    for number in range(5_000):
        queue.put(number, "bulk")
        queue.discard(number, "bulk")
    queue.put(7, "bulk")
    assert len(queue._classes["bulk"].heap) < 100
    assert [queue.take(), queue.take()] == [7, None]


@pytest.mark.parametrize(
    ("priority", "name"),
    [
        ("operator", "operator"),
        (" High ", "high"),
        ("critical", "operator"),
        ("low", "bulk"),
        (9, "operator"),
        (6, "high"),
        (4, "normal"),
        ("5", "normal"),
        (0, "bulk"),
        (2.5, "bulk"),
        (None, "normal"),
        (True, "normal"),
        (float("nan"), "normal"),
        ("whatever", "normal"),
        ({}, "normal"),
        ("9" * 5_000, "normal"),
    ],
)
def test_priorities(priority, name):
    assert class_of(priority) == name


@pytest.mark.parametrize("weights", [{}, {"a": 0}])
def test_weights_that_make_no_sense(weights):
    with pytest.raises(OptionError):
        PriorityQueue(weights)
