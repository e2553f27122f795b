"""Large payloads that go through the broker piece by piece, over a real log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import EVERYTHING, ControlledSubscriber, Publisher, stepped_hub
from tests.folders import new_folder
from transfer.broker.delivery.subscriber import Overflow
from transfer.log import Retention
from transfer.transports.errors import UsageError

PIECE = 100
TRANSIENT, DURABLE = "transient", "durable"


@pytest.fixture
def stepped(tmp_path):
    with stepped_hub(tmp_path, durable=lambda name: name != TRANSIENT, patience=5.0) as stepped:
        yield stepped


def listen(stepped, **changes):
    subscriber = ControlledSubscriber(stepped.hub, **{"auto": True, **changes})
    stepped.hub.subscribe(subscriber, EVERYTHING)
    return subscriber


def settle(stepped, publisher):
    """Until the disk has it all, and nobody waits."""
    stepped.until(lambda: publisher.pauses and not publisher.paused)


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_whole_message_comes_in_pieces(stepped, topic):
    subscriber, publisher, answers = listen(stepped), Publisher(), []
    passage = stepped.begin(topic, 300, publisher, answers.append)
    for n in range(3):
        passage.piece(bytes([n]) * PIECE)
    passage.finish()
    assert subscriber.received == [b"".join(bytes([n]) * PIECE for n in range(3))]
    stepped.until(lambda: answers)
    assert answers == [None]
    assert publisher.paused == 0
    if topic == DURABLE:
        stepped.until(lambda: stepped.hub.stream(topic, 0, 1000))
        assert b"".join(stepped.hub.stream(topic, 0, 1000)) == subscriber.received[0]


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_no_bytes_at_all(stepped, topic):
    subscriber, publisher = listen(stepped), Publisher()
    stepped.begin(topic, 0, publisher).finish()
    assert subscriber.received == [b""]
    if topic == DURABLE:
        settle(stepped, publisher)
        assert [one.nbytes for one in stepped.store.read(stepped.store.topic(topic), 0)] in ([0], [])


def test_wrong_numbers_of_bytes_are_refused(stepped):
    passage = stepped.begin(TRANSIENT, 150)
    passage.piece(bytes(PIECE))
    with pytest.raises(UsageError, match="50 are missing"):
        passage.piece(bytes(PIECE))
    with pytest.raises(UsageError, match="50 of 150"):
        passage.finish()
    passage.piece(bytes(50))
    passage.finish()


@given(
    st.lists(st.sampled_from(["piece", "take", "some", "tick", "offer"]), max_size=60),
    st.sampled_from([TRANSIENT, DURABLE]),
)
@settings(max_examples=40, deadline=None)
def test_the_publisher_waits_as_often_as_it_goes_on(steps, topic):
    with new_folder() as folder, stepped_hub(folder, durable=lambda name: name == DURABLE) as stepped:
        subscriber, publisher = listen(stepped, limit=250, auto=False), Publisher()
        passage = stepped.begin(topic, 100 * PIECE, publisher)
        given = 0
        for now, step in enumerate(steps):
            if step == "piece" and not publisher.paused:
                passage.piece(bytes(PIECE))
                given += 1
            elif step == "take":
                subscriber.take()
                assert not publisher.paused
            elif step == "some":
                subscriber.take(30)
            elif step == "offer":
                stepped.publish("other", b"between")
            elif step == "tick":
                stepped.hub.tick(now / 100)
                assert bool(publisher.paused) == (subscriber.queued > subscriber.limit)
        for _ in range(100 - given):
            passage.piece(bytes(PIECE))
        passage.finish()
        if topic == DURABLE:
            settle(stepped, publisher)
        assert publisher.paused == 0
        assert subscriber.received[0] == bytes(100 * PIECE)


def test_a_slow_receiver_is_cut_off_behind_patience(stepped):
    slow, quick = listen(stepped, auto=False, limit=150), listen(stepped)
    publisher = Publisher()
    passage = stepped.begin(TRANSIENT, 400, publisher)
    passage.piece(bytes(PIECE))
    passage.piece(bytes(PIECE))
    assert publisher.paused == 1
    for now in (0.0, 3.0, 4.9):
        stepped.hub.tick(now)
    slow.take(10)  # it lives
    for now in (5.5, 8.0, 10.0):
        stepped.hub.tick(now)
    assert not slow.closed
    stepped.hub.tick(11.0)
    assert slow.closed
    assert publisher.paused == 0
    passage.piece(bytes(PIECE))
    passage.piece(bytes(PIECE))
    passage.finish()
    assert quick.received == [bytes(400)]
    assert stepped.hub.counts["closed_slow"] == 1


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_a_publisher_that_goes(stepped, topic):
    subscriber, answers = listen(stepped), []
    passage = stepped.begin(topic, 300, on_complete=answers.append)
    passage.piece(bytes(PIECE))
    passage.abandon("its peer has gone")
    passage.abandon("twice")
    assert "its peer has gone" in subscriber.received[0]
    assert stepped.hub.counts["broken_off"] == 1
    stepped.kept(DURABLE, b"others go on")
    assert [bytes(one.payload) for one in stepped.store.read(stepped.store.topic(DURABLE), 0)] == [
        b"others go on"
    ]
    assert stepped.store.topic(DURABLE).position == 12


def test_a_receiver_that_goes_takes_nothing_from_others(stepped):
    """It goes by a piece that it is given: the others are given that piece all the same."""

    class Goes(ControlledSubscriber):
        def piece(self, data):
            super().piece(data)
            self.close("its peer has gone")

    publisher, first = Publisher(), listen(stepped)
    goes = Goes(stepped.hub, limit=10)
    stepped.hub.subscribe(goes, EVERYTHING)
    second, third = listen(stepped), listen(stepped)
    passage = stepped.begin(TRANSIENT, 300, publisher)
    for n in range(3):
        passage.piece(bytes([n]) * PIECE)
    passage.finish()
    assert (
        first.received
        == second.received
        == third.received
        == [b"".join(bytes([n]) * PIECE for n in range(3))]
    )
    assert publisher.paused == 0


def test_who_holds_it_up_and_goes(stepped):
    slow, publisher = listen(stepped, auto=False, limit=50), Publisher()
    passage = stepped.begin(TRANSIENT, 300, publisher)
    passage.piece(bytes(PIECE))
    assert publisher.paused == 1
    slow.close("gone")
    assert publisher.paused == 0
    passage.piece(bytes(200))
    passage.finish()


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_who_has_no_room_when_it_begins(stepped, topic, overflow):
    subscriber = listen(stepped, auto=False, limit=10, overflow=overflow)
    stepped.publish(topic, b"much more than there is room for")
    publisher = Publisher()
    passage = stepped.begin(topic, PIECE, publisher)
    passage.piece(bytes(PIECE))
    passage.finish()
    if topic == DURABLE:
        settle(stepped, publisher)
    if overflow is Overflow.CLOSE:
        assert subscriber.closed
    elif overflow is Overflow.SPILL and topic == DURABLE:
        stepped.until(lambda: subscriber.take() or len(subscriber.received) == 2)
        assert subscriber.received[1] == bytes(PIECE)
    else:
        assert (len(subscriber.received), subscriber.dropped) == (1, 1)


def test_who_was_left_out_and_goes_is_forgotten(stepped):
    subscriber = listen(stepped, auto=False, limit=10)
    stepped.publish(DURABLE, b"more than there is room for")
    passage = stepped.begin(DURABLE, PIECE, publisher := Publisher())
    passage.piece(bytes(PIECE))
    passage.finish()
    subscriber.close("gone")
    settle(stepped, publisher)
    assert not stepped.hub.fanout.behind


def test_a_receiver_that_falls_behind_meanwhile_gets_it_once(stepped):
    """Small messages overflow it while the large one is on its way, which has its place in the log behind
    them: it has been given that one already."""
    subscriber = listen(stepped, auto=False, limit=400)
    passage = stepped.begin(DURABLE, 300, publisher := Publisher())
    passage.piece(b"L" * 300)
    small = [b"%03d" % n * 20 for n in range(8)]
    for payload in small:
        stepped.publish(DURABLE, payload)
    assert len(stepped.hub.fanout.behind) == 1
    passage.finish()
    settle(stepped, publisher)
    last = b"last" * 10
    stepped.publish(DURABLE, last)
    stepped.until(lambda: subscriber.take() or not stepped.hub.fanout.behind)
    assert subscriber.received == [b"L" * 300, *small, last]
    assert subscriber.dropped == 0


def test_two_at_once_on_one_topic(stepped):
    """The second goes to a receiver from the log, since its connection is in the middle of the first."""
    subscriber = listen(stepped)
    one, two = Publisher(), Publisher()
    first, second = stepped.begin(DURABLE, 200, one), stepped.begin(DURABLE, 200, two)
    for payload, passage in ((b"1", first), (b"2", second), (b"2", second), (b"1", first)):
        passage.piece(payload * PIECE)
    second.finish()
    first.finish()
    settle(stepped, one)
    settle(stepped, two)
    stepped.until(lambda: subscriber.take() or len(subscriber.received) == 2)
    assert sorted(subscriber.received) == [b"1" * 200, b"2" * 200]
    kept = stepped.store.read(stepped.store.topic(DURABLE), 0)
    assert [bytes(message.payload)[:1] for message in kept] == [b"2", b"1"]
    assert b"".join(stepped.hub.stream(DURABLE, 0, 1000)) == b"2" * 200 + b"1" * 200


def test_what_a_publisher_sends_next_stands_behind(stepped):
    """It is told to wait from the last byte on until the record has its place."""
    publisher = Publisher()
    for n in range(5):
        passage = stepped.begin(DURABLE, PIECE, publisher)
        passage.piece(bytes([n]) * PIECE)
        passage.finish()
        assert publisher.paused == 1
        settle(stepped, publisher)
        stepped.publish(DURABLE, bytes([n]))
    stepped.kept(DURABLE, b"end")
    kept = [bytes(one.payload) for one in stepped.store.read(stepped.store.topic(DURABLE), 0)]
    assert kept[:-1] == [bytes([n]) * size for n in range(5) for size in (PIECE, 1)]


def test_a_full_log_is_waited_for(tmp_path):
    with stepped_hub(tmp_path, segment_bytes=4096, retention=Retention(bytes=42_000)) as stepped:
        stepped.kept("a", b"first")
        stepped.log.acknowledge("topic/a", "holds", 0)
        for _ in range(2):
            stepped.kept("a", bytes(3000))
        publisher, answers = Publisher(), []
        passage = stepped.begin("a", 36_000, publisher, answers.append)
        passage.piece(bytes(36_000))
        passage.finish()
        stepped.turn(0.05)
        assert answers == []
        assert publisher.paused == 1
        stepped.log.acknowledge("topic/a", "holds", 3)
        stepped.hub.tick(0.0)
        stepped.until(lambda: answers)
        assert answers == [None]
        assert publisher.paused == 0


def test_a_publisher_that_goes_while_the_log_is_full(tmp_path):
    """Others' large messages do not wait for its place."""
    with stepped_hub(tmp_path, segment_bytes=4096, retention=Retention(bytes=40_000)) as stepped:
        stepped.kept("a", b"first")
        stepped.log.acknowledge("topic/a", "holds", 0)
        passage = stepped.begin("a", 100_000)
        passage.piece(bytes(1000))
        stepped.turn(0.02)
        passage.abandon("gone")
        answers = []
        small = stepped.begin("a", 1000, on_complete=answers.append)
        small.piece(bytes(1000))
        small.finish()
        stepped.until(lambda: answers)
        assert answers == [None]


def test_the_end_of_the_broker_in_the_middle(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        subscriber, answers = listen(stepped), []
        passage = stepped.begin("a", 300, on_complete=answers.append)
        passage.piece(bytes(PIECE))
        whole = stepped.begin("b", PIECE, on_complete=answers.append)
        whole.piece(bytes(PIECE))
        whole.finish()
    assert "the broker ends" in subscriber.received[-1]
    assert answers == [], "nobody was told that anything is kept"
    with stepped_hub(tmp_path) as stepped:
        assert stepped.store.topic("a").position == 0
        stepped.kept("a", b"again")
