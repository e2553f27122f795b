"""Prefixes against a plain model, by hypothesis."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from transfer.transports.prefixes import Prefixes


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


class _Topic(bytes):
    """Counts how often it is cut."""

    def __getitem__(self, part):
        self.cuts = getattr(self, "cuts", 0) + 1
        return super().__getitem__(part)


def test_a_topic_is_looked_up_once_for_each_length_of_prefixes():
    known, topic = Prefixes(), _Topic(b"0500/more")
    for number in range(1000):
        known.add(b"%04d" % number)
    assert known.matches(topic) and topic.cuts == 1
    known.add(b"x")
    known.remove(b"0500")
    topic.cuts = 0
    assert not known.matches(topic) and topic.cuts == 2
