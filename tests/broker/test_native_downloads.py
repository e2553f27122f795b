"""Large messages that are fetched in ranges, over a real log: how much of them is on its way."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.broker.stepped_hub import stepped_hub
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
def stepped(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        stepped.kept("t", PAYLOAD)
        stepped.reader = RangeReader(stepped.loop, stepped.store, stepped.hub.counts)
        yield stepped
        stepped.reader.close()


def offered(stepped, attempt=1):
    taker, topic = Taker(), stepped.store.topic("t")
    offers = Offers(stepped.reader, topic, taker)
    offers.offer(Delivery(taker, 0, attempt), stepped.store.read(topic, 0)[0])
    assert taker.said.pop() == (Op.OFFER, Place(0, attempt, len(PAYLOAD)), b"")
    return offers, taker


def settled(stepped):
    """Until nothing more is read."""
    done = []
    stepped.reader.do(lambda: memoryview(b""), done.append)
    stepped.until(lambda: done)


def test_no_more_is_read_than_leaves(stepped):
    """Whatever is asked for: what a slow connection holds is bounded."""
    offers, taker = offered(stepped)
    assert offers.fetch(Place(0, 1, 1 << 62))
    settled(stepped)
    data = b""
    while len(data) < len(PAYLOAD):
        assert sum(map(len, taker.views)) == min(WINDOW, len(PAYLOAD) - len(data))
        data += taker.views.pop(0)
        stepped.turn()
        settled(stepped)
    assert data == PAYLOAD
    places = [place.position for _, place, _ in taker.said]
    assert places == list(range(0, len(PAYLOAD), PIECE))


def test_no_more_is_read_than_is_asked_for(stepped):
    offers, taker = offered(stepped)
    for wanted, pieces in ((1, 1), (PIECE, 1), (PIECE + 1, 2), (0, 2), (3 * PIECE, 3)):
        assert offers.fetch(Place(0, 1, wanted))
        settled(stepped)
        assert len(taker.views) == pieces


@pytest.mark.parametrize("end", ["forget", "close", "again"])
def test_an_offer_that_ends(stepped, end):
    offers, taker = offered(stepped)
    offers.fetch(Place(0, 1, 3 * PIECE))
    if end == "forget":
        offers.forget([(0, 2), (1, 1)])
        assert offers.fetch(Place(0, 1, 4 * PIECE)), "another attempt is another delivery"
        offers.forget([(0, 1)])
    elif end == "close":
        offers.close()
    else:
        message = stepped.store.read(offers.topic, 0)[0]
        offers.offer(Delivery(taker, 0, 2), message)
        assert taker.ended == [("stale", (0, 1))]
        assert offers.fetch(Place(0, 2, 1))
    settled(stepped)
    assert not offers.fetch(Place(0, 1, 9 * PIECE))
    assert all(place.attempt == 2 for op, place, _ in taker.said if op is Op.RANGE)


def test_one_that_is_gone(stepped):
    offers, taker = offered(stepped)
    offers.fetch(Place(0, 1, PIECE))
    settled(stepped)
    stepped.log.discard("topic/t", 0, 1)
    offers.fetch(Place(0, 1, 2 * PIECE))
    settled(stepped)
    assert taker.ended == [("gone", (0, 1))]
    assert stepped.hub.counts["damaged"] == 1
    assert not offers.fetch(Place(0, 1, 3 * PIECE))


def test_nobody_is_told_when_the_loop_has_ended(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        reader = RangeReader(stepped.loop, stepped.store, Counter())
    began, told = threading.Event(), []

    def read():
        began.set()
        return memoryview(b"x")

    reader.do(read, told.append)
    assert began.wait(10)
    reader.close()
    assert not told
