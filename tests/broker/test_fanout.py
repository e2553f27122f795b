"""Who is told of a message, and what becomes of those who cannot follow, over a real log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import EVERYTHING, ControlledSubscriber, stepped_hub
from tests.folders import new_folder
from transfer.broker.core.message import Front
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.delivery.frame_stream import Streamed
from transfer.broker.delivery.subscriber import Overflow
from transfer.log import Retention


@pytest.fixture
def stepped(tmp_path):
    with stepped_hub(tmp_path, durable=lambda name: not name.startswith("transient")) as stepped:
        yield stepped


def listen(stepped, **changes):
    subscriber = ControlledSubscriber(stepped.hub, **changes)
    stepped.hub.subscribe(subscriber, EVERYTHING)
    return subscriber


def test_several_patterns_are_one_message(stepped):
    subscriber = listen(stepped)
    stepped.hub.subscribe(subscriber, pattern(Kind.EXACT, "a"))
    stepped.hub.subscribe(subscriber, pattern(Kind.EXACT, "a"))
    stepped.publish("a", b"1")
    assert subscriber.received == [b"1"]
    assert stepped.hub.unsubscribe(subscriber, EVERYTHING)
    assert not stepped.hub.unsubscribe(subscriber, EVERYTHING)
    stepped.publish("a", b"2")
    stepped.publish("b", b"3")
    assert subscriber.received == [b"1", b"2"]


def test_a_stream_that_was_told_holds_no_subscriber(stepped):
    """It is held for groups when its subscribers' connections have long ended."""
    subscriber = listen(stepped)
    message = Streamed("a", (b"1",), Front.TTP)
    message.given = frozenset({subscriber})
    stepped.hub.publish(message, None)
    stepped.publish("a", b"2")
    assert subscriber.received == [b"2"] and not message.given


def test_a_message_larger_than_the_limit_goes_if_nothing_waits(stepped):
    subscriber = listen(stepped, limit=10)
    stepped.publish("a", bytes(50))
    assert subscriber.queued == 50
    stepped.publish("a", b"next")
    assert len(subscriber.received) == 1


@pytest.mark.parametrize("topic", ["transient", "durable"])
def test_drop_is_counted(stepped, topic):
    subscriber = listen(stepped, limit=10, overflow=Overflow.DROP)
    for n in range(5):
        stepped.publish(topic, b"%04d" % n)
    assert subscriber.received == [b"0000", b"0001"]
    assert subscriber.dropped == stepped.hub.counts["dropped"] == 3
    subscriber.take()
    stepped.publish(topic, b"after")
    assert subscriber.received[2:] == [b"after"]


def test_spill_drops_where_nothing_is_kept(stepped):
    subscriber = listen(stepped, limit=10)
    for n in range(5):
        stepped.publish("transient", b"%04d" % n)
    assert (subscriber.received, subscriber.dropped) == ([b"0000", b"0001"], 3)
    assert not stepped.hub.fanout.behind


def test_close_ends_the_slow(stepped):
    subscriber = listen(stepped, limit=10, overflow=Overflow.CLOSE)
    other = listen(stepped)
    for n in range(5):
        stepped.publish("a", b"%04d" % n)
    assert subscriber.closed
    assert len(other.received) == 5
    assert stepped.hub.counts["closed_slow"] == 1


@given(st.lists(st.one_of(st.integers(1, 900), st.sampled_from(["take", "turn", "some"])), max_size=60))
@settings(max_examples=40, deadline=None)
def test_who_spills_gets_all_in_order(steps):
    with new_folder() as folder, stepped_hub(folder) as stepped:
        slow = listen(stepped, limit=1000)
        quick = listen(stepped, auto=True)
        sent = []
        for step in steps:
            if step == "take":
                slow.take()
            elif step == "some":
                slow.take(300)
            elif step == "turn":
                stepped.turn(0.001)
            else:
                sent.append(len(sent).to_bytes(2, "big") * step)
                stepped.publish("a", sent[-1])

        def caught_up():
            slow.take()
            return not stepped.hub.fanout.behind

        stepped.until(caught_up)
        assert quick.received == sent
        assert slow.received == sent
        assert slow.dropped == 0


def test_who_takes_at_once_while_it_catches_up_gets_nothing_twice(stepped):
    """What it is offered may be written at once: it is relieved in the middle of reading the log."""
    subscriber = listen(stepped, limit=100_000)
    sent = [b"%05d" % n * 20 for n in range(5000)]
    for payload in sent:
        stepped.publish("a", payload)
    assert len(stepped.hub.fanout.behind) == 1
    subscriber.auto = True
    subscriber.take()
    stepped.until(lambda: not stepped.hub.fanout.behind)
    assert subscriber.received == sent


def test_two_topics_are_behind_by_themselves(stepped):
    subscriber = listen(stepped, limit=20)
    for n in range(10):
        stepped.publish("a", b"a%09d" % n)
        stepped.publish("b", b"b%09d" % n)

    def caught_up():
        subscriber.take()
        return not stepped.hub.fanout.behind

    stepped.until(caught_up)
    for letter in (b"a", b"b"):
        theirs = [one for one in subscriber.received if one.startswith(letter)]
        assert theirs == [letter + b"%09d" % n for n in range(10)]


def test_unsubscribing_while_it_is_behind(stepped):
    subscriber = listen(stepped, limit=20)
    other = listen(stepped, limit=20)
    for n in range(10):
        stepped.publish("a", b"%010d" % n)
    stepped.turn(0.01)
    stepped.hub.unsubscribe(subscriber, EVERYTHING)
    subscriber.take()
    stepped.turn(0.1)
    assert len(subscriber.received) == 2
    other.close("gone")
    assert not stepped.hub.fanout.behind
    stepped.publish("a", b"more")
    assert len(subscriber.received) == 2


def test_one_that_goes_while_it_is_told(stepped):
    """It is given messages of the log, and its connection ends by the first of them."""

    class Goes(ControlledSubscriber):
        def offer(self, message):
            late.extend([message] * self.closed)
            super().offer(message)
            if len(self.received) == 105:
                self.close("its peer has gone")

    late = []
    subscriber = Goes(stepped.hub, limit=1000)
    stepped.hub.subscribe(subscriber, EVERYTHING)
    for n in range(200):
        stepped.publish("a", b"%010d" % n)
    stepped.until(lambda: subscriber.take() or subscriber.closed)
    assert len(subscriber.received) == 106
    assert not late, "it was told though it had gone"
    assert not stepped.hub.fanout.behind
    stepped.kept("a", b"others go on")


def test_retention_that_is_faster_is_counted(tmp_path):
    with stepped_hub(tmp_path, segment_bytes=4096, retention=Retention(bytes=16384)) as stepped:
        subscriber = listen(stepped, limit=2000)
        sent = []
        for n in range(200):
            sent.append(n.to_bytes(2, "big") * 250)
            stepped.kept("a", sent[-1])
            if n % 10 == 0:
                stepped.hub.tick(0.0)
                stepped.turn(0.002)

        def caught_up():
            subscriber.take()
            return not stepped.hub.fanout.behind

        stepped.until(caught_up)
        assert subscriber.dropped > 0
        assert len(subscriber.received) + subscriber.dropped == len(sent)
        assert subscriber.received == sorted(set(subscriber.received)), "in order, none twice"
        assert subscriber.received[-1] == sent[-1]


def test_damage_is_passed_over(tmp_path, caplog):
    with stepped_hub(tmp_path) as stepped:
        subscriber = listen(stepped, limit=100)
        sent = [b"%04d" % n * 20 for n in range(20)]
        for payload in sent:
            stepped.kept("a", payload)
        [segment] = tmp_path.glob("*.log")
        data = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(data.index(sent[7]))
            file.write(b"X")

        def caught_up():
            subscriber.take()
            return not stepped.hub.fanout.behind

        stepped.until(caught_up)
        assert subscriber.received == sent[:7] + sent[8:]
        assert (subscriber.dropped, stepped.hub.counts["damaged"]) == (1, 1)
    caplog.clear()  # the error in it has views of the log's file


def test_one_that_goes_while_it_is_behind_on_two_topics(stepped):
    """What it is given ends it: the others are told all the same."""

    class Goes(ControlledSubscriber):
        def offer(self, message):
            super().offer(message)
            if len(self.received) > 2:
                self.close("its peer has gone")

    goes, stays = Goes(stepped.hub, limit=20), ControlledSubscriber(stepped.hub, limit=20)
    for subscriber in (goes, stays):
        stepped.hub.subscribe(subscriber, EVERYTHING)
    for n in range(10):
        stepped.publish("a", b"a%09d" % n)
        stepped.publish("b", b"b%09d" % n)
    stepped.turn(0.1)
    assert len(stepped.hub.fanout.behind[goes]) == 2
    goes.take()  # room: it is given more of the first topic, now or in the next turn, and goes
    stepped.until(lambda: goes.closed)

    def caught_up():
        stays.take()
        return not stepped.hub.fanout.behind

    stepped.until(caught_up)
    assert len(stays.received) == 20
