"""Large payloads that go through the broker piece by piece, over a real log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.stepped_hub import EVERYTHING, Ear, Publisher, heart
from tests.folders import new_folder
from transfer.broker.delivery.subscriber import Overflow
from transfer.log import Retention
from transfer.transports.errors import UsageError

PIECE = 100
TRANSIENT, DURABLE = "transient", "durable"


@pytest.fixture
def beating(tmp_path):
    with heart(tmp_path, durable=lambda name: name != TRANSIENT, patience=5.0) as beating:
        yield beating


def listen(beating, **changes):
    ear = Ear(beating.hub, **{"auto": True, **changes})
    beating.hub.subscribe(ear, EVERYTHING)
    return ear


def settle(beating, publisher):
    """Until the disk has it all, and nobody waits."""
    beating.until(lambda: publisher.pauses and not publisher.paused)


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_whole_message_comes_in_pieces(beating, topic):
    ear, publisher, answers = listen(beating), Publisher(), []
    passage = beating.begin(topic, 300, publisher, answers.append)
    for n in range(3):
        passage.piece(bytes([n]) * PIECE)
    passage.finish()
    assert ear.heard == [b"".join(bytes([n]) * PIECE for n in range(3))]
    beating.until(lambda: answers)
    assert answers == [None]
    assert publisher.paused == 0
    if topic == DURABLE:
        beating.until(lambda: beating.hub.stream(topic, 0, 1000))
        assert b"".join(beating.hub.stream(topic, 0, 1000)) == ear.heard[0]


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_no_bytes_at_all(beating, topic):
    ear, publisher = listen(beating), Publisher()
    beating.begin(topic, 0, publisher).finish()
    assert ear.heard == [b""]
    if topic == DURABLE:
        settle(beating, publisher)
        assert [one.nbytes for one in beating.store.read(beating.store.topic(topic), 0)] in ([0], [])


def test_wrong_numbers_of_bytes_are_refused(beating):
    passage = beating.begin(TRANSIENT, 150)
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
    with new_folder() as folder, heart(folder, durable=lambda name: name == DURABLE) as beating:
        ear, publisher = listen(beating, limit=250, auto=False), Publisher()
        passage = beating.begin(topic, 100 * PIECE, publisher)
        given = 0
        for now, step in enumerate(steps):
            if step == "piece" and not publisher.paused:
                passage.piece(bytes(PIECE))
                given += 1
            elif step == "take":
                ear.take()
                assert not publisher.paused
            elif step == "some":
                ear.take(30)
            elif step == "offer":
                beating.publish("other", b"between")
            elif step == "tick":
                beating.hub.tick(now / 100)
                assert bool(publisher.paused) == (ear.queued > ear.limit)
        for _ in range(100 - given):
            passage.piece(bytes(PIECE))
        passage.finish()
        if topic == DURABLE:
            settle(beating, publisher)
        assert publisher.paused == 0
        assert ear.heard[0] == bytes(100 * PIECE)


def test_a_slow_receiver_is_cut_off_behind_patience(beating):
    slow, quick = listen(beating, auto=False, limit=150), listen(beating)
    publisher = Publisher()
    passage = beating.begin(TRANSIENT, 400, publisher)
    passage.piece(bytes(PIECE))
    passage.piece(bytes(PIECE))
    assert publisher.paused == 1
    for now in (0.0, 3.0, 4.9):
        beating.hub.tick(now)
    slow.take(10)  # it lives
    for now in (5.5, 8.0, 10.0):
        beating.hub.tick(now)
    assert not slow.closed
    beating.hub.tick(11.0)
    assert slow.closed
    assert publisher.paused == 0
    passage.piece(bytes(PIECE))
    passage.piece(bytes(PIECE))
    passage.finish()
    assert quick.heard == [bytes(400)]
    assert beating.hub.counts["closed_slow"] == 1


@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_a_publisher_that_goes(beating, topic):
    ear, answers = listen(beating), []
    passage = beating.begin(topic, 300, on_complete=answers.append)
    passage.piece(bytes(PIECE))
    passage.abandon("its peer has gone")
    passage.abandon("twice")
    assert "its peer has gone" in ear.heard[0]
    assert beating.hub.counts["broken_off"] == 1
    beating.kept(DURABLE, b"others go on")
    assert [bytes(one.payload) for one in beating.store.read(beating.store.topic(DURABLE), 0)] == [
        b"others go on"
    ]
    assert beating.store.topic(DURABLE).position == 12


def test_a_receiver_that_goes_takes_nothing_from_others(beating):
    """It goes by a piece that it is given: the others are given that piece all the same."""

    class Goes(Ear):
        def piece(self, data):
            super().piece(data)
            self.close("its peer has gone")

    publisher, first = Publisher(), listen(beating)
    goes = Goes(beating.hub, limit=10)
    beating.hub.subscribe(goes, EVERYTHING)
    second, third = listen(beating), listen(beating)
    passage = beating.begin(TRANSIENT, 300, publisher)
    for n in range(3):
        passage.piece(bytes([n]) * PIECE)
    passage.finish()
    assert first.heard == second.heard == third.heard == [b"".join(bytes([n]) * PIECE for n in range(3))]
    assert publisher.paused == 0


def test_who_holds_it_up_and_goes(beating):
    slow, publisher = listen(beating, auto=False, limit=50), Publisher()
    passage = beating.begin(TRANSIENT, 300, publisher)
    passage.piece(bytes(PIECE))
    assert publisher.paused == 1
    slow.close("gone")
    assert publisher.paused == 0
    passage.piece(bytes(200))
    passage.finish()


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("topic", [TRANSIENT, DURABLE])
def test_who_has_no_room_when_it_begins(beating, topic, overflow):
    ear = listen(beating, auto=False, limit=10, overflow=overflow)
    beating.publish(topic, b"much more than there is room for")
    publisher = Publisher()
    passage = beating.begin(topic, PIECE, publisher)
    passage.piece(bytes(PIECE))
    passage.finish()
    if topic == DURABLE:
        settle(beating, publisher)
    if overflow is Overflow.CLOSE:
        assert ear.closed
    elif overflow is Overflow.SPILL and topic == DURABLE:
        beating.until(lambda: ear.take() or len(ear.heard) == 2)
        assert ear.heard[1] == bytes(PIECE)
    else:
        assert (len(ear.heard), ear.dropped) == (1, 1)


def test_who_was_left_out_and_goes_is_forgotten(beating):
    ear = listen(beating, auto=False, limit=10)
    beating.publish(DURABLE, b"more than there is room for")
    passage = beating.begin(DURABLE, PIECE, publisher := Publisher())
    passage.piece(bytes(PIECE))
    passage.finish()
    ear.close("gone")
    settle(beating, publisher)
    assert not beating.hub.fanout.behind


def test_a_receiver_that_falls_behind_meanwhile_gets_it_once(beating):
    """Small messages overflow it while the large one is on its way, which has its place in the log behind
    them: it has been given that one already."""
    ear = listen(beating, auto=False, limit=400)
    passage = beating.begin(DURABLE, 300, publisher := Publisher())
    passage.piece(b"L" * 300)
    small = [b"%03d" % n * 20 for n in range(8)]
    for payload in small:
        beating.publish(DURABLE, payload)
    assert len(beating.hub.fanout.behind) == 1
    passage.finish()
    settle(beating, publisher)
    last = b"last" * 10
    beating.publish(DURABLE, last)
    beating.until(lambda: ear.take() or not beating.hub.fanout.behind)
    assert ear.heard == [b"L" * 300, *small, last]
    assert ear.dropped == 0


def test_two_at_once_on_one_topic(beating):
    """The second goes to a receiver from the log, since its connection is in the middle of the first."""
    ear = listen(beating)
    one, two = Publisher(), Publisher()
    first, second = beating.begin(DURABLE, 200, one), beating.begin(DURABLE, 200, two)
    for payload, passage in ((b"1", first), (b"2", second), (b"2", second), (b"1", first)):
        passage.piece(payload * PIECE)
    second.finish()
    first.finish()
    settle(beating, one)
    settle(beating, two)
    beating.until(lambda: ear.take() or len(ear.heard) == 2)
    assert sorted(ear.heard) == [b"1" * 200, b"2" * 200]
    kept = beating.store.read(beating.store.topic(DURABLE), 0)
    assert [bytes(message.payload)[:1] for message in kept] == [b"2", b"1"]
    assert b"".join(beating.hub.stream(DURABLE, 0, 1000)) == b"2" * 200 + b"1" * 200


def test_what_a_publisher_sends_next_stands_behind(beating):
    """It is told to wait from the last byte on until the record has its place."""
    publisher = Publisher()
    for n in range(5):
        passage = beating.begin(DURABLE, PIECE, publisher)
        passage.piece(bytes([n]) * PIECE)
        passage.finish()
        assert publisher.paused == 1
        settle(beating, publisher)
        beating.publish(DURABLE, bytes([n]))
    beating.kept(DURABLE, b"end")
    kept = [bytes(one.payload) for one in beating.store.read(beating.store.topic(DURABLE), 0)]
    assert kept[:-1] == [bytes([n]) * size for n in range(5) for size in (PIECE, 1)]


def test_a_full_log_is_waited_for(tmp_path):
    with heart(tmp_path, segment_bytes=4096, retention=Retention(bytes=42_000)) as beating:
        beating.kept("a", b"first")
        beating.log.acknowledge("topic/a", "holds", 0)
        for _ in range(2):
            beating.kept("a", bytes(3000))
        publisher, answers = Publisher(), []
        passage = beating.begin("a", 36_000, publisher, answers.append)
        passage.piece(bytes(36_000))
        passage.finish()
        beating.turn(0.05)
        assert answers == []
        assert publisher.paused == 1
        beating.log.acknowledge("topic/a", "holds", 3)
        beating.hub.tick(0.0)
        beating.until(lambda: answers)
        assert answers == [None]
        assert publisher.paused == 0


def test_a_publisher_that_goes_while_the_log_is_full(tmp_path):
    """Others' large messages do not wait for its place."""
    with heart(tmp_path, segment_bytes=4096, retention=Retention(bytes=40_000)) as beating:
        beating.kept("a", b"first")
        beating.log.acknowledge("topic/a", "holds", 0)
        passage = beating.begin("a", 100_000)
        passage.piece(bytes(1000))
        beating.turn(0.02)
        passage.abandon("gone")
        answers = []
        small = beating.begin("a", 1000, on_complete=answers.append)
        small.piece(bytes(1000))
        small.finish()
        beating.until(lambda: answers)
        assert answers == [None]


def test_the_end_of_the_broker_in_the_middle(tmp_path):
    with heart(tmp_path) as beating:
        ear, answers = listen(beating), []
        passage = beating.begin("a", 300, on_complete=answers.append)
        passage.piece(bytes(PIECE))
        whole = beating.begin("b", PIECE, on_complete=answers.append)
        whole.piece(bytes(PIECE))
        whole.finish()
    assert "the broker ends" in ear.heard[-1]
    assert answers == [], "nobody was told that anything is kept"
    with heart(tmp_path) as beating:
        assert beating.store.topic("a").position == 0
        beating.kept("a", b"again")
