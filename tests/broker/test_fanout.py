"""Who is told of a message, and what becomes of those who cannot follow, over a real log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import EVERYTHING, Ear, heart
from tests.folders import new_folder
from transfer.broker.core.message import Front
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.frame_stream import Streamed
from transfer.broker.delivery.subscriber import Overflow
from transfer.log import Retention


@pytest.fixture
def beating(tmp_path):
    with heart(tmp_path, durable=lambda name: not name.startswith("transient")) as beating:
        yield beating


def listen(beating, **changes):
    ear = Ear(beating.hub, **changes)
    beating.hub.subscribe(ear, EVERYTHING)
    return ear


def test_several_patterns_are_one_message(beating):
    ear = listen(beating)
    beating.hub.subscribe(ear, pattern(Kind.EXACT, "a"))
    beating.hub.subscribe(ear, pattern(Kind.EXACT, "a"))
    beating.publish("a", b"1")
    assert ear.heard == [b"1"]
    assert beating.hub.unsubscribe(ear, EVERYTHING)
    assert not beating.hub.unsubscribe(ear, EVERYTHING)
    beating.publish("a", b"2")
    beating.publish("b", b"3")
    assert ear.heard == [b"1", b"2"]


def test_a_stream_that_was_told_holds_no_subscriber(beating):
    """It is held for groups when its subscribers' connections have long ended."""
    ear = listen(beating)
    message = Streamed("a", (b"1",), Front.TTP)
    message.given = frozenset({ear})
    beating.hub.publish(message, None)
    beating.publish("a", b"2")
    assert ear.heard == [b"2"] and not message.given


def test_a_message_larger_than_the_limit_goes_if_nothing_waits(beating):
    ear = listen(beating, limit=10)
    beating.publish("a", bytes(50))
    assert ear.queued == 50
    beating.publish("a", b"next")
    assert len(ear.heard) == 1


@pytest.mark.parametrize("topic", ["transient", "durable"])
def test_drop_is_counted(beating, topic):
    ear = listen(beating, limit=10, overflow=Overflow.DROP)
    for n in range(5):
        beating.publish(topic, b"%04d" % n)
    assert ear.heard == [b"0000", b"0001"]
    assert ear.dropped == beating.hub.counts["dropped"] == 3
    ear.take()
    beating.publish(topic, b"after")
    assert ear.heard[2:] == [b"after"]


def test_spill_drops_where_nothing_is_kept(beating):
    ear = listen(beating, limit=10)
    for n in range(5):
        beating.publish("transient", b"%04d" % n)
    assert (ear.heard, ear.dropped) == ([b"0000", b"0001"], 3)
    assert not beating.hub.fanout.behind


def test_close_ends_the_slow(beating):
    ear = listen(beating, limit=10, overflow=Overflow.CLOSE)
    other = listen(beating)
    for n in range(5):
        beating.publish("a", b"%04d" % n)
    assert ear.closed
    assert len(other.heard) == 5
    assert beating.hub.counts["closed_slow"] == 1


@given(st.lists(st.one_of(st.integers(1, 900), st.sampled_from(["take", "turn", "some"])), max_size=60))
@settings(max_examples=40, deadline=None)
def test_who_spills_gets_all_in_order(steps):
    with new_folder() as folder, heart(folder) as beating:
        slow = listen(beating, limit=1000)
        quick = listen(beating, auto=True)
        sent = []
        for step in steps:
            if step == "take":
                slow.take()
            elif step == "some":
                slow.take(300)
            elif step == "turn":
                beating.turn(0.001)
            else:
                sent.append(len(sent).to_bytes(2, "big") * step)
                beating.publish("a", sent[-1])

        def caught_up():
            slow.take()
            return not beating.hub.fanout.behind

        beating.until(caught_up)
        assert quick.heard == sent
        assert slow.heard == sent
        assert slow.dropped == 0


def test_who_takes_at_once_while_it_catches_up_gets_nothing_twice(beating):
    """What it is offered may be written at once: it is relieved in the middle of reading the log."""
    ear = listen(beating, limit=100_000)
    sent = [b"%05d" % n * 20 for n in range(5000)]
    for payload in sent:
        beating.publish("a", payload)
    assert len(beating.hub.fanout.behind) == 1
    ear.auto = True
    ear.take()
    beating.until(lambda: not beating.hub.fanout.behind)
    assert ear.heard == sent


def test_two_topics_are_behind_by_themselves(beating):
    ear = listen(beating, limit=20)
    for n in range(10):
        beating.publish("a", b"a%09d" % n)
        beating.publish("b", b"b%09d" % n)

    def caught_up():
        ear.take()
        return not beating.hub.fanout.behind

    beating.until(caught_up)
    for letter in (b"a", b"b"):
        theirs = [one for one in ear.heard if one.startswith(letter)]
        assert theirs == [letter + b"%09d" % n for n in range(10)]


def test_unsubscribing_while_it_is_behind(beating):
    ear = listen(beating, limit=20)
    other = listen(beating, limit=20)
    for n in range(10):
        beating.publish("a", b"%010d" % n)
    beating.turn(0.01)
    beating.hub.unsubscribe(ear, EVERYTHING)
    ear.take()
    beating.turn(0.1)
    assert len(ear.heard) == 2
    other.close("gone")
    assert not beating.hub.fanout.behind
    beating.publish("a", b"more")
    assert len(ear.heard) == 2


def test_one_that_goes_while_it_is_told(beating):
    """It is given messages of the log, and its connection ends by the first of them."""

    class Goes(Ear):
        def offer(self, message):
            late.extend([message] * self.closed)
            super().offer(message)
            if len(self.heard) == 105:
                self.close("its peer has gone")

    late = []
    ear = Goes(beating.hub, limit=1000)
    beating.hub.subscribe(ear, EVERYTHING)
    for n in range(200):
        beating.publish("a", b"%010d" % n)
    beating.until(lambda: ear.take() or ear.closed)
    assert len(ear.heard) == 106
    assert not late, "it was told though it had gone"
    assert not beating.hub.fanout.behind
    beating.kept("a", b"others go on")


def test_retention_that_is_faster_is_counted(tmp_path):
    with heart(tmp_path, segment_bytes=4096, retention=Retention(bytes=16384)) as beating:
        ear = listen(beating, limit=2000)
        sent = []
        for n in range(200):
            sent.append(n.to_bytes(2, "big") * 250)
            beating.kept("a", sent[-1])
            if n % 10 == 0:
                beating.hub.tick(0.0)
                beating.turn(0.002)

        def caught_up():
            ear.take()
            return not beating.hub.fanout.behind

        beating.until(caught_up)
        assert ear.dropped > 0
        assert len(ear.heard) + ear.dropped == len(sent)
        assert ear.heard == sorted(set(ear.heard)), "in order, none twice"
        assert ear.heard[-1] == sent[-1]


def test_damage_is_passed_over(tmp_path, caplog):
    with heart(tmp_path) as beating:
        ear = listen(beating, limit=100)
        sent = [b"%04d" % n * 20 for n in range(20)]
        for payload in sent:
            beating.kept("a", payload)
        [segment] = tmp_path.glob("*.log")
        data = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(data.index(sent[7]))
            file.write(b"X")

        def caught_up():
            ear.take()
            return not beating.hub.fanout.behind

        beating.until(caught_up)
        assert ear.heard == sent[:7] + sent[8:]
        assert (ear.dropped, beating.hub.counts["damaged"]) == (1, 1)
    caplog.clear()  # the error in it has views of the log's file


def test_one_that_goes_while_it_is_behind_on_two_topics(beating):
    """What it is given ends it: the others are told all the same."""

    class Goes(Ear):
        def offer(self, message):
            super().offer(message)
            if len(self.heard) > 2:
                self.close("its peer has gone")

    goes, stays = Goes(beating.hub, limit=20), Ear(beating.hub, limit=20)
    for ear in (goes, stays):
        beating.hub.subscribe(ear, EVERYTHING)
    for n in range(10):
        beating.publish("a", b"a%09d" % n)
        beating.publish("b", b"b%09d" % n)
    beating.turn(0.1)
    assert len(beating.hub.fanout.behind[goes]) == 2
    goes.take()  # room: it is given more of the first topic, and goes
    assert goes.closed

    def caught_up():
        stays.take()
        return not beating.hub.fanout.behind

    beating.until(caught_up)
    assert len(stays.heard) == 20
