"""Which topics and patterns are allowed, and what a pattern means."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.core.topic_patterns import MAX_BYTES, Kind, Rank, TopicPattern, check_topic, pattern
from transfer.transports.errors import UsageError

REFUSED = [
    (Kind.DOTS, "", "empty"),
    (Kind.DOTS, "orders.>.created", "continues after"),
    (Kind.DOTS, ">.orders", "continues after"),
    (Kind.DOTS, "orders..created", "empty segment"),
    (Kind.DOTS, ".orders", "empty segment"),
    (Kind.DOTS, "orders.", "empty segment"),
    (Kind.DOTS, "orders.*.>", "both"),
    (Kind.DOTS, "*.orders.>", "both"),
    (Kind.DOTS, "*.>.*", "continues after"),
    (Kind.DOTS, "orders. created", "white space"),
    (Kind.DOTS, " orders", "white space"),
    (Kind.DOTS, "orders\n", "white space"),
    (Kind.DOTS, "\t", "white space"),
    (Kind.DOTS, "orders\u2003new", "white space"),
    (Kind.DOTS, "orders.new*", "within"),
    (Kind.DOTS, "orders.>>", "within"),
    (Kind.DOTS, "orders\0", "NUL"),
    (Kind.PATHS, "", "empty"),
    (Kind.PATHS, "/models/*", "empty segment"),
    (Kind.PATHS, "models/*/", "empty segment"),
    (Kind.PATHS, "models//*", "empty segment"),
    (Kind.PATHS, "a\0b", "NUL"),
    (Kind.EXACT, "", "empty"),
    (Kind.EXACT, "a\0", "NUL"),
    (Kind.EXACT, "\ud800", "UTF-8"),
    (Kind.EXACT, "é" * 128, "256 bytes"),
    (Kind.PREFIX, "\0", "NUL"),
    (Kind.PREFIX, "a" * 256, "256 bytes"),
]


@pytest.mark.parametrize(("kind", "text", "why"), REFUSED)
def test_a_wrong_pattern_is_refused_with_the_reason(kind, text, why):
    with pytest.raises(UsageError, match=why):
        pattern(kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "rank"),
    [
        (Kind.DOTS, "orders.created", Rank.EXACT),
        (Kind.DOTS, "*", Rank.ONE),
        (Kind.DOTS, "*.*", Rank.ONE),
        (Kind.DOTS, "orders.*.created", Rank.ONE),
        (Kind.DOTS, ">", Rank.REST),
        (Kind.DOTS, "orders.>", Rank.REST),
        (Kind.PATHS, "models/*/grads", Rank.ONE),
        (Kind.PATHS, "models/>", Rank.EXACT),
        (Kind.PATHS, "models/a*", Rank.EXACT),
        (Kind.PATHS, "/a//b/", Rank.EXACT),
        (Kind.EXACT, "a.*", Rank.EXACT),
        (Kind.EXACT, "a b", Rank.EXACT),
        (Kind.EXACT, "é" * 127, Rank.EXACT),
        (Kind.PREFIX, "", Rank.REST),
        (Kind.PREFIX, "a.", Rank.REST),
    ],
)
def test_a_pattern_knows_how_closely_it_describes_its_topics(kind, text, rank):
    assert pattern(kind, text).rank is rank


TOPICS = [
    "orders", "orders.created", "orders.eu.created", "orders.*", "orders..created",
    "*", "a/b", "a//b", "orders.a/b",
]  # fmt: skip
MEANT = [
    (Kind.DOTS, "orders", ["orders"]),
    (Kind.DOTS, "orders.*", ["orders.created", "orders.*", "orders.a/b"]),
    (Kind.DOTS, "*", ["orders", "*", "a/b", "a//b"]),
    (Kind.DOTS, "*.*", ["orders.created", "orders.*", "orders.a/b"]),
    (Kind.DOTS, "orders.>", ["orders.created", "orders.eu.created", "orders.*", "orders.a/b"]),
    (Kind.DOTS, ">", [topic for topic in TOPICS if topic != "orders..created"]),
    (Kind.PATHS, "a/*", ["a/b"]),
    (Kind.PATHS, "*/b", ["a/b", "orders.a/b"]),
    (Kind.PATHS, "a//b", ["a//b"]),
    (Kind.PATHS, "orders.*", ["orders.*"]),
    (Kind.EXACT, "*", ["*"]),
    (Kind.EXACT, "orders..created", ["orders..created"]),
    (Kind.PREFIX, "orders.", [topic for topic in TOPICS if topic.startswith("orders.")]),
    (Kind.PREFIX, "a/", ["a/b", "a//b"]),
]


@pytest.mark.parametrize(("kind", "text", "meant"), MEANT)
def test_a_pattern_means_its_topics_and_no_others(kind, text, meant):
    wanted = pattern(kind, text)
    assert [topic for topic in TOPICS if wanted.matches(topic)] == meant


def test_the_empty_prefix_means_everything():
    assert all(pattern(Kind.PREFIX, "").matches(topic) for topic in TOPICS)


@pytest.mark.parametrize("topic", ["a", "a.b", "a-b.c_d", "a/b.c", "é.ü", "a" * MAX_BYTES])
def test_a_topic_of_dots_may_be_published(topic):
    check_topic(topic, Kind.DOTS)
    assert pattern(Kind.DOTS, topic).matches(topic)


@pytest.mark.parametrize(
    "topic", ["", ".", "a.", ".a", "a..b", "a b", "a.\n", "a.*", ">", "a.b>", "a\0b", "\ud800", "a" * 256]
)
def test_a_wrong_topic_of_dots_is_refused(topic):
    with pytest.raises(UsageError):
        check_topic(topic, Kind.DOTS)


@pytest.mark.parametrize("kind", [Kind.EXACT, Kind.PREFIX, Kind.PATHS])
def test_other_kinds_take_topics_as_they_are(kind):
    for topic in ("/a//b/", "a b", "a.*", "*", ">"):
        check_topic(topic, kind)
    for topic in ("", "a\0", "é" * 128):
        with pytest.raises(UsageError):
            check_topic(topic, kind)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab.*> /\0é", max_size=8), st.sampled_from(Kind))
def test_what_a_publisher_may_say_a_subscriber_may_ask_for(text, kind):
    try:
        check_topic(text, kind)
    except UsageError:
        return
    if kind is Kind.PATHS and "*" in text.split("/"):
        return  # a pattern then
    assert pattern(kind, text).matches(text)


def test_patterns_are_equal_by_kind_and_text():
    assert pattern(Kind.DOTS, "a") == TopicPattern(Kind.DOTS, "a") != pattern(Kind.EXACT, "a")
    assert len({pattern(Kind.DOTS, "a"), TopicPattern(Kind.DOTS, "a"), pattern(Kind.PATHS, "a")}) == 2
