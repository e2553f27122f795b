"""Large messages by the broker's own front that make no sense, are damaged, or are gone: others go on."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from tests.broker.native_peers import wait_for
from tests.broker.native_programs import MIB, PAYLOAD, program, quiet
from transfer.broker.clients.native import BrokerClient
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.protocols.native import Op, decode_deliveries, encode
from transfer.broker.protocols.native_pieces import Part, Place, pack_parts

GRANT = 16 * MIB


MOST = NativeSettings().max_message_in_pieces


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (lambda raw: raw.begin(1, 1 << 50), "too_large"),
        (lambda raw: raw.begin(1, MOST + 1), "too_large"),
        (lambda raw: raw.begin(1, 0), "length"),
        (lambda raw: raw.begin(1, MIB, b""), "topic"),
        (lambda raw: raw.begin(1, MIB, b"\xff"), "topic"),
        (lambda raw: raw.begin(1, MIB, parts=pack_parts([Part(1, bytes(48), 5)])), "parts"),
        (lambda raw: raw.say(encode(Op.BEGIN, 1, b"x")), "begin"),
        (lambda raw: raw.piece(1, b"x"), "no BEGIN"),
        (lambda raw: raw.end(1), "no BEGIN"),
        (lambda raw: raw.say(encode(Op.GRANT, 1, bytes(8))), "has not joined"),
        (lambda raw: raw.fetch(Place(0, 1, 0), 5, number=1), "has not joined"),
    ],
)
def test_what_cannot_be_begun_is_refused(broker, raw, said, reason):
    before = broker.hub.store.log.disk_bytes
    said(raw)
    number, told = raw.refused()
    assert number == 1 and reason in told
    assert quiet(broker)
    assert broker.hub.store.log.disk_bytes == before
    raw.say(encode(Op.PUBLISH, 2, b"t"), b"others go on")
    assert raw.kept() == 2


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (lambda raw: raw.piece(1, bytes(3 * MIB)), "are granted"),
        (lambda raw: raw.end(1), "ended after 1048576"),
        (lambda raw: raw.begin(1, MIB), "was begun before"),
    ],
)
def test_what_is_wrong_in_the_middle_ends_it(broker, raw, said, reason):
    raw.begin(1, 2 * MIB)
    raw.begin(2, 2 * MIB)
    raw.piece(1, bytes(MIB))
    raw.piece(2, bytes(MIB))
    said(raw)
    number, told = raw.refused()
    assert number == 1 and reason in told
    raw.piece(2, bytes(MIB))
    raw.end(2)
    assert raw.kept() == 2
    assert quiet(broker)
    topic = broker.hub.store.topics["t"]
    assert (topic.kept, topic.position) == (1, 2 * MIB)


def test_more_than_is_granted_is_refused(broker, raw):
    raw.begin(1, 64 * MIB)
    assert raw.granted() == (1, GRANT)
    raw.piece(1, bytes(GRANT + 1))
    assert "are granted" in raw.refused()[1]
    assert quiet(broker)


def test_too_many_at_once_are_refused(broker, raw):
    for number in range(65):
        raw.begin(number, MIB)
    assert raw.refused()[0] == 64
    for number in range(64):
        raw.piece(number, bytes(MIB))
        raw.end(number)
    kept = set()
    while len(kept) < 64:
        head, _ = raw.hear(Op.KEPT)
        kept |= set(range(head.number, head.number + head.amount))
    assert kept == set(range(64))
    assert quiet(broker)


def test_a_fetch_of_what_was_not_offered_is_stale(client, raw):
    client.publish("t", PAYLOAD)
    raw.join("t", pieces=True)
    place = raw.offered()
    raw.fetch(place._replace(attempt=2), MIB)
    assert raw.hear()[0].op is Op.STALE
    raw.fetch(place._replace(offset=1), MIB)
    assert raw.hear()[0].op is Op.STALE
    raw.ack(place)
    assert raw.hear()[0].op is Op.ACKED
    raw.fetch(place, MIB)
    assert raw.hear()[0].op is Op.STALE


def test_a_damaged_one_is_gone_and_the_next_one_comes(tmp_path, caplog):
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"], timeout=10) as client:
        client.publish("t", PAYLOAD)
        client.publish("t", PAYLOAD[::-1])
    [blobs] = (tmp_path / "log").glob("*.blobs")
    with blobs.open("r+b") as file:
        file.seek(PAYLOAD.index(PAYLOAD[MIB : MIB + 100]))
        file.write(b"damage")
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"], timeout=10) as client:
        consumer = client.consume("t", "g", begin="old")
        message = consumer.recv()
        assert (message.offset, bytes(message.data)) == (1, PAYLOAD[::-1])
        consumer.ack(message, wait=True)
        assert broker.hub.counts["damaged"] == 1
        [served] = broker.hub.groups.served
        wait_for(lambda: served.group.cursor == 2)
        with program(broker.endpoints["requests"]) as raw:  # it takes them whole
            raw.join("t", group="whole")
            found = []
            while len(found) < 2:
                found += decode_deliveries(raw.hear(Op.DELIVER)[0])
            assert found == [(0, 1, 0), (1, 1, 1)]
    caplog.clear()  # an error that was written there has the log's memory in its traceback


def test_retention_takes_it_away(tmp_path):
    """A message whose log is gone for it counts as done with."""
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"], timeout=10) as client:
        client.publish("t", PAYLOAD)
        client.publish("t", b"next")
        consumer = client.consume("t", "g", begin="old")
        wait_for(lambda: consumer.waiting)
        broker.hub.store.log.discard("topic/t", 0, 1)
        assert bytes(consumer.recv().data) == b"next"
