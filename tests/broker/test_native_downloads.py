"""Large messages that are fetched in ranges, over a real log: how much of them is on its way."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.broker.stepped_hub import heart
from transfer.broker.core.groups import Delivery
from transfer.broker.fronts.native_downloads import Offers, RangeReader
from transfer.broker.protocols.native import Op
from transfer.broker.protocols.native_pieces import PIECE, Place

PAYLOAD = b"".join(bytes([number]) * PIECE for number in range(20)) + b"the end"
WINDOW = 8 * PIECE


class Taker:
    """Holds what it is given, as a slow connection does."""

    def __init__(self):
        self.said = []
        self.views = []
        self.ended = []

    def send(self, op, place, rest=b"", data=None):
        self.said.append((op, place, rest))
        if data is not None:
            self.views.append(data)

    def stale(self, deliveries):
        self.ended.append(("stale", *deliveries))

    def gone(self, offset, attempt):
        self.ended.append(("gone", (offset, attempt)))


@pytest.fixture
def beating(tmp_path):
    with heart(tmp_path) as beating:
        beating.kept("t", PAYLOAD)
        beating.reader = RangeReader(beating.loop, beating.store, beating.hub.counts)
        yield beating
        beating.reader.close()


def offered(beating, attempt=1):
    taker, topic = Taker(), beating.store.topic("t")
    offers = Offers(beating.reader, topic, taker)
    offers.offer(Delivery(taker, 0, attempt), beating.store.read(topic, 0)[0])
    assert taker.said.pop() == (Op.OFFER, Place(0, attempt, len(PAYLOAD)), b"")
    return offers, taker


def settled(beating):
    """Until nothing more is read."""
    done = []
    beating.reader.do(lambda: memoryview(b""), done.append)
    beating.until(lambda: done)


def test_no_more_is_read_than_leaves(beating):
    """Whatever is asked for: what a slow connection holds is bounded."""
    offers, taker = offered(beating)
    assert offers.fetch(Place(0, 1, 1 << 62))
    settled(beating)
    data = b""
    while len(data) < len(PAYLOAD):
        assert sum(map(len, taker.views)) == min(WINDOW, len(PAYLOAD) - len(data))
        data += taker.views.pop(0)
        beating.turn()
        settled(beating)
    assert data == PAYLOAD
    places = [place.position for _, place, _ in taker.said]
    assert places == list(range(0, len(PAYLOAD), PIECE))


def test_no_more_is_read_than_is_asked_for(beating):
    offers, taker = offered(beating)
    for wanted, pieces in ((1, 1), (PIECE, 1), (PIECE + 1, 2), (0, 2), (3 * PIECE, 3)):
        assert offers.fetch(Place(0, 1, wanted))
        settled(beating)
        assert len(taker.views) == pieces


@pytest.mark.parametrize("end", ["forget", "close", "again"])
def test_an_offer_that_ends(beating, end):
    offers, taker = offered(beating)
    offers.fetch(Place(0, 1, 3 * PIECE))
    if end == "forget":
        offers.forget([(0, 2), (1, 1)])
        assert offers.fetch(Place(0, 1, 4 * PIECE)), "another attempt is another delivery"
        offers.forget([(0, 1)])
    elif end == "close":
        offers.close()
    else:
        message = beating.store.read(offers.topic, 0)[0]
        offers.offer(Delivery(taker, 0, 2), message)
        assert taker.ended == [("stale", (0, 1))]
        assert offers.fetch(Place(0, 2, 1))
    settled(beating)
    assert not offers.fetch(Place(0, 1, 9 * PIECE))
    assert all(place.attempt == 2 for op, place, _ in taker.said if op is Op.RANGE)


def test_one_that_is_gone(beating):
    offers, taker = offered(beating)
    offers.fetch(Place(0, 1, PIECE))
    settled(beating)
    beating.log.discard("topic/t", 0, 1)
    offers.fetch(Place(0, 1, 2 * PIECE))
    settled(beating)
    assert taker.ended == [("gone", (0, 1))]
    assert beating.hub.counts["damaged"] == 1
    assert not offers.fetch(Place(0, 1, 3 * PIECE))


def test_nobody_is_told_when_the_loop_has_ended(tmp_path):
    with heart(tmp_path) as beating:
        reader = RangeReader(beating.loop, beating.store, Counter())
    began, told = threading.Event(), []

    def read():
        began.set()
        return memoryview(b"x")

    reader.do(read, told.append)
    assert began.wait(10)
    reader.close()
    assert not told
