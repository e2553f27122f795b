"""Prefixes against a plain model, by hypothesis."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from transports.prefixes import Prefixes


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=3))), st.lists(st.binary(max_size=5), min_size=1))
def test_a_topic_matches_while_a_prefix_of_it_is_subscribed(steps, topics):
    known, model = Prefixes(), Counter()
    for add, prefix in steps:
        if add:
            known.add(prefix)
            model[prefix] += 1
        else:
            assert known.remove(prefix) == (model[prefix] > 0)
            model[prefix] = max(0, model[prefix] - 1)
        assert set(known.all) == set(+model)
        for topic in topics:
            assert known.matches(topic) == any(topic.startswith(prefix) for prefix in +model)
