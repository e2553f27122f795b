"""One connection, whatever it sends and however it ends, leaves the loop to others between its frames."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.broker.single_front import Turns
from tests.broker.stepped_hub import ControlledSubscriber, stepped_hub
from tests.broker.ttp_peers import serving
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern
from transfer.broker.delivery import fanout
from transfer.broker.fronts.pybroker import PyBrokerFront, PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueFront, RqueueSettings
from transfer.broker.fronts.ttp import TtpFront, TtpSettings
from transfer.broker.net import connection
from transfer.broker.protocols import pybroker, rqueue
from transfer.broker.protocols.rqueue import encode_deregister, encode_publish, encode_subscribe
from transfer.broker.protocols.ttp import WANTED, encode_head

MANY = 20


@contextmanager
def one_frame_a_turn(folder, monkeypatch, make):
    monkeypatch.setattr(connection, "_TURN_SECONDS", 0.0)
    turns = Turns(folder, make)
    try:
        yield turns
    finally:
        turns.close()


def numbered(turns, monkeypatch, name):
    """The turns in which the hub is called so, and what it is given behind the first argument."""
    found: list = []
    call = getattr(turns.hub, name)

    def note(*arguments, **options):
        found.append((turns.number, arguments[1:]))
        return call(*arguments, **options)

    monkeypatch.setattr(turns.hub, name, note)
    return found


def ttp_front(hub, lines):
    return TtpFront(hub, lines)


def rqueue_front(hub, lines):
    return RqueueFront(hub, lines, RqueueSettings())


def pybroker_front(hub, lines):
    return PyBrokerFront(hub, lines, PyBrokerSettings())


@pytest.mark.parametrize(
    ("make", "call", "encode"),
    [
        (ttp_front, "publish", lambda n: encode_head(3, b"t%d" % n, b"", 1) + b"x"),
        (ttp_front, "subscribe", lambda n: encode_head(2, b"t%d" % n)),
        (ttp_front, "subscribe", lambda n: encode_head(2, b"t%d" % n, b"", 1) + b"x"),
        (rqueue_front, "publish", lambda n: rqueue.encode_publish(f"t{n}", 1) + b"x"),
        (rqueue_front, "subscribe", lambda n: rqueue.encode_subscribe(f"t{n}")),
        (pybroker_front, "publish", lambda n: pybroker.encode_publish(f"t{n}", 1) + b"x"),
    ],
)
def test_frames_that_take_long_are_taken_in_turns(tmp_path, monkeypatch, make, call, encode):
    with one_frame_a_turn(tmp_path, monkeypatch, make) as turns:
        found = numbered(turns, monkeypatch, call)
        _, stays = turns.received([b"".join(map(encode, range(MANY)))])
    taken = [number for number, _ in found][-MANY:]
    assert stays and len(set(taken)) == len(taken) == MANY
    assert taken == sorted(taken)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "encode"),
    [
        (ttp_front, lambda n, size: encode_head(3, b"t%d" % n, b"", size)),
        (rqueue_front, lambda n, size: rqueue.encode_publish(f"t{n}", size)),
        (pybroker_front, lambda n, size: pybroker.encode_publish(f"t{n}", size)),
    ],
)
def test_payloads_that_end_when_a_turn_is_over(tmp_path, monkeypatch, make, encode):
    payloads = [b"x" * size for size in (1, 70_000, 2, 200_000, 70_000, 70_000, 0, 3)]
    said = b"".join(encode(n, len(payload)) + payload for n, payload in enumerate(payloads))
    for size in (len(said), 70_030, 1000):
        with one_frame_a_turn(tmp_path / str(size), monkeypatch, make) as turns:
            received, stays = turns.received([said[at : at + size] for at in range(0, len(said), size)])
        assert stays
        assert [payload for _, payload in received] == payloads


def test_all_subscriptions_of_a_connection_end_in_turns_and_what_it_says_next_comes_behind(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(fanout, "AT_ONCE", 5)
    turns = Turns(tmp_path, rqueue_front)
    try:
        ended = numbered(turns, monkeypatch, "unsubscribe_some")
        begun = numbered(turns, monkeypatch, "subscribe")
        frames = [encode_subscribe(f"t{n}") for n in range(MANY)]
        said = encode_publish("t3", 1) + b"x"
        _, stays = turns.received([b"".join([*frames, encode_deregister(), encode_subscribe("t3"), said])])
    finally:
        turns.close()
    assert stays and len({number for number, _ in ended}) == len(ended) == MANY // 5
    assert begun[-1][0] >= ended[-1][0] and begun[-1][1] == (pattern(Kind.EXACT, "t3"),)


def test_who_goes_with_many_subscriptions_is_told_nothing_more_and_is_cleared_away_in_turns(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(fanout, "AT_ONCE", 10)
    with stepped_hub(tmp_path, durable=lambda name: False) as stepped:
        stays, goes, another = ControlledSubscriber(), ControlledSubscriber(), ControlledSubscriber()
        for subscriber in (stays, goes, another):
            for number in range(35):
                stepped.hub.subscribe(subscriber, pattern(Kind.PATHS, f"{number}/*"))
        index = stepped.hub.fanout._index
        stepped.publish("34/a", b"1")
        stepped.hub.leave(goes)
        stepped.hub.leave(another)
        sizes = [len(index)]
        stepped.publish("34/a", b"2")
        stepped.publish("0/new", b"3")
        while sizes[-1] > 35:
            stepped.turn()
            sizes.append(len(index))
        assert sizes == [105, 95, 85, 75, 65, 55, 45, 35]
        stepped.publish("34/a", b"4")
        assert goes.received == another.received == [b"1"] and stays.received == [b"1", b"2", b"3", b"4"]


def test_who_is_slow_with_many_subscriptions_is_looked_up_and_not_searched(tmp_path, monkeypatch):
    looked = []
    matches = TopicPattern.matches
    monkeypatch.setattr(
        TopicPattern, "matches", lambda one, topic: looked.append(topic) or matches(one, topic)
    )
    with stepped_hub(tmp_path) as stepped:
        subscriber = ControlledSubscriber(limit=1)
        for number in range(1000):
            stepped.hub.subscribe(subscriber, pattern(Kind.PATHS, f"{number}/*"))
            stepped.hub.subscribe(subscriber, pattern(Kind.EXACT, f"{number}"))
        for topic in ("1/a", "1/b", "7", "8"):
            stepped.publish(topic, b"12")
        assert stepped.hub.counts["spilled"] == 3 and looked == []
        stepped.hub.unsubscribe(subscriber, pattern(Kind.EXACT, "7"))
        stepped.hub.unsubscribe(subscriber, pattern(Kind.EXACT, "9"))
        assert looked == []
        assert len(stepped.hub.fanout.behind[subscriber]) == 2
        stepped.hub.unsubscribe(subscriber, pattern(Kind.PATHS, "1/*"))
        assert len(stepped.hub.fanout.behind[subscriber]) == 1 and len(looked) == 2, (
            "one for each topic behind"
        )


def test_one_shape_too_many_is_refused_by_ttp_and_the_connection_goes_on(tmp_path):
    limits = TtpSettings(max_subscriptions=4, max_pattern_shapes=2, max_pattern_shapes_total=3)
    with serving(tmp_path, 2, settings=limits) as (broker, one, other):
        one.subscribe(b"a/*").subscribe(b"b/*").subscribe(b"*/a")
        one.send(2, b"*/*", number=5)
        assert one.refused() == (5, "usage")
        other.subscribe(b"*/*")
        other.send(2, b"a/b/*", number=6)
        assert other.refused() == (6, "usage")
        one.subscribe(b"c").send(2, b"d", number=7)
        assert one.refused() == (7, "usage")
        assert broker.front.counters["refused"] == 3
        assert one.ask(2, b"*/a", b'{"unsubscribe":true}', flags=WANTED)[0] == 6
        other.subscribe(b"a/b/*").send(3, b"a/b", data=b"1")
        assert one.read()[5] == b"1" and other.read()[5] == b"1" and one.alive() and other.alive()
