"""The index finds what `TopicPattern.matches` says, whatever came and went, in steps that do not grow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transfer.broker.core.pattern_index import PatternIndex
from transfer.broker.core.subscriptions import Most, TopicSubscriptions
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern
from transfer.transports.errors import UsageError

TOPICS = st.text(alphabet="ab.*>/", min_size=1, max_size=7)


def _pattern(kind: Kind, text: str) -> TopicPattern | None:
    try:
        return pattern(kind, text)
    except UsageError:
        return None


def _joined(mark, segments):
    return st.lists(st.sampled_from(segments), min_size=1, max_size=5).map(mark.join)


PATTERNS = (
    st.one_of(
        st.tuples(st.just(Kind.DOTS), _joined(".", ["a", "b", "a/b", "*", ">"])),
        st.tuples(st.just(Kind.PATHS), _joined("/", ["a", "b", "a.b", "*", ">", ""])),
        st.tuples(st.sampled_from([Kind.EXACT, Kind.PREFIX]), st.text(alphabet="ab./*", max_size=4)),
    )
    .map(lambda found: _pattern(*found))
    .filter(lambda found: found is not None)
)


class Machine(RuleBasedStateMachine):
    """An index beside a list of pairs of pattern and value."""

    def __init__(self):
        super().__init__()
        self.index = PatternIndex()
        self.pairs = []

    @rule(wanted=PATTERNS, value=st.integers(0, 12))
    def add(self, wanted, value):
        version = self.index.version
        new = (wanted, value) not in self.pairs
        assert self.index.add(wanted, value) is new
        assert self.index.version == version + new
        if new:
            self.pairs.append((wanted, value))

    @rule(wanted=PATTERNS, value=st.integers(0, 12))
    def discard(self, wanted, value):
        self.drop(wanted, value)

    @rule(data=st.data())
    def discard_one_that_is_there(self, data):
        if self.pairs:
            self.drop(*data.draw(st.sampled_from(self.pairs)))

    def drop(self, wanted, value):
        version = self.index.version
        known = (wanted, value) in self.pairs
        assert self.index.discard(wanted, value) is known
        assert self.index.version == version + known
        if known:
            self.pairs.remove((wanted, value))

    @rule(topic=st.one_of(TOPICS, _joined(".", ["a", "b"]), _joined("/", ["a", "b", "a.b"])))
    def match(self, topic):
        meant = [(wanted, value) for wanted, value in self.pairs if wanted.matches(topic)]
        found = self.index.match(topic)
        assert sorted(found) == sorted(value for _, value in meant)
        ranks = [sorted(wanted.rank for wanted, value in meant if value == one) for one in found]
        lowest = [min(some) for some in ranks]
        assert len(lowest) == len(found)
        if len(set(found)) == len(found):
            assert lowest == sorted(lowest), "closer patterns come first"
        for value in range(13):
            assert self.index.holds(topic, value) is (value in found)

    @invariant()
    def counts(self):
        assert len(self.index) == len(self.pairs)
        shapes = {wanted.shape for wanted, _ in self.pairs} - {None}
        assert self.index.shapes == len(shapes)
        assert all(self.index.has(shape) for shape in shapes)


TestIndex = Machine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_values_come_in_the_order_in_which_they_were_added():
    index = PatternIndex()
    wanted = pattern(Kind.DOTS, "a.*")
    for value in range(20, 0, -1):
        assert index.add(wanted, value)
    assert index.discard(wanted, 7)
    assert index.match("a.b") == [value for value in range(20, 0, -1) if value != 7]


def test_one_value_under_two_patterns_leaves_one_by_one():
    index = PatternIndex()
    for kind in (Kind.EXACT, Kind.DOTS, Kind.PATHS):
        assert index.add(pattern(kind, "a"), "somebody")
    assert index.match("a") == ["somebody"] * 3
    assert index.discard(pattern(Kind.DOTS, "a"), "somebody")
    assert index.match("a") == ["somebody"] * 2


@pytest.mark.parametrize("many", [10_000])
def test_steps_do_not_grow_with_the_number_of_patterns(many):
    shapes = {
        "a.{0}.c.d": ("a.5.c.d", Kind.DOTS),
        "a.{0}.*.d": ("a.5.c.d", Kind.DOTS),
        "b.*.{0}": ("b.c.5", Kind.DOTS),
        "c.{0}.>": ("c.5.x.y", Kind.DOTS),
        "d/{0}/*": ("d/5/x", Kind.PATHS),
    }
    few, all_ = PatternIndex(), PatternIndex()
    for number, (shape, (_, kind)) in itertools.product(range(many), shapes.items()):
        wanted = pattern(kind, shape.format(number))
        all_.add(wanted, number)
        if number < 10:
            few.add(wanted, number)
    for topic, _ in shapes.values():
        small, large = few.match_counted(topic), all_.match_counted(topic)
        assert small[0] == large[0] != []
        assert small[1] == large[1] <= 4


def test_prefixes_cost_a_step_for_each_length_in_use():
    index = PatternIndex()
    for number in range(1000):
        index.add(pattern(Kind.PREFIX, f"{number:04d}"), number)
    assert index.match_counted("0042.and.more") == ([42], 1)
    index.add(pattern(Kind.PREFIX, ""), -1)
    assert index.match_counted("0042.and.more") == ([-1, 42], 2)
    assert index.match_counted("00") == ([-1], 1)
    index.discard(pattern(Kind.PREFIX, ""), -1)
    assert index.match_counted("0042.and.more") == ([42], 1)


def test_steps_are_no_more_than_shapes():
    """Each of 20 segments is `a` or `*`: a tree walks into thousands of branches for a topic of `a`s."""
    index = PatternIndex()
    for number, end in itertools.product(range(1, 101), range(100)):
        segments = ["*" if number >> place & 1 else "a" for place in range(20)]
        index.add(pattern(Kind.PATHS, "/".join([*segments, str(end)])), number)
    assert len(index) == 10_000 and index.shapes == 100
    begin = "/".join(["a"] * 20)
    assert index.match_counted(f"{begin}/new") == ([], 100)
    found, steps = index.match_counted(f"{begin}/7")
    assert sorted(found) == list(range(1, 101)) and steps == 100
    assert index.match_counted("a/b")[1] == 0, "those of other lengths are not looked at"


def test_a_subscriber_may_have_so_many_shapes_and_all_together_so_many():
    index: PatternIndex = PatternIndex()

    def subscribe(mine, text, value):
        wanted = pattern(Kind.PATHS, text)
        mine.add(wanted, index)
        index.add(wanted, value)

    most = Most(patterns=5, shapes=2, shapes_together=3)
    first, second = TopicSubscriptions(most), TopicSubscriptions(most)
    for text in ("a/*", "b/*", "*/a"):
        subscribe(first, text, 1)
    with pytest.raises(UsageError, match="the 2 that a subscriber may have") as told:
        subscribe(first, "*/*", 1)
    assert "hint" in str(told.value) and len(first) == 3
    subscribe(second, "*/*", 2)
    with pytest.raises(UsageError, match="the 3 that all subscribers may have"):
        subscribe(second, "a/b/*", 2)
    subscribe(second, "z/*", 2)
    for text in ("a", "b"):
        subscribe(first, text, 1)
    with pytest.raises(UsageError, match="5 subscriptions"):
        subscribe(first, "c", 1)
    for text in ("a/*", "b/*"):
        first.discard(pattern(Kind.PATHS, text))
        index.discard(pattern(Kind.PATHS, text), 1)
    subscribe(first, "*/*", 1)
    with pytest.raises(UsageError, match="a subscriber may have"):
        subscribe(first, "*/b/c", 1)
