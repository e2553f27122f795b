"""Large messages by the broker's own front, in pieces both ways, through real sockets."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

import transfer
from tests.broker.in_process_broker import FREE, running
from tests.broker.native_peers import wait_for
from tests.broker.native_programs import MIB, PAYLOAD, program, quiet
from tests.broker.ttp_peers import Peer as TtpPeer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.protocols.native import Op, decode_deliveries, encode
from transfer.broker.protocols.native_pieces import LARGE_FROM, Place, encode_place
from transfer.broker.protocols.ttp import HEADER_SIZE
from transfer.transports.errors import Again, Broken, TransferError

TRANSIENT = (pattern(Kind.PREFIX, "live/"),)
GRANT = 16 * MIB


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path, first_delay=0.01, transient=TRANSIENT) as broker:
        yield broker


class Peer(TtpPeer):
    """A plain connection to the broker's port of TTP."""

    def __init__(self, broker):
        self.socket = socket.create_connection(("127.0.0.1", broker.ports["ttp"]), 20)


# -- what comes is what was sent -------------------------------------------------------------------------


def test_bytes_and_parts_come_back(client):
    client.publish("t", PAYLOAD)
    client.publish("t", b"first", memoryview(PAYLOAD), b"", bytearray(b"last"))
    consumer = client.consume("t", "g", begin="old")
    one, two = consumer.recv(), consumer.recv()
    assert bytes(one.data) == PAYLOAD
    assert [bytes(part.buffer) for part in two.parts] == [b"first", PAYLOAD, b"", b"last"]
    consumer.ack(one, two, wait=True)
    assert not consumer.stale


@pytest.mark.parametrize("shape", [(3, 4), (700, 1000), (3, 1000, 1000)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tensors_come_back(client, shape, order):
    array = np.random.default_rng(7).standard_normal(shape).astype(np.float32, order=order)
    consumer = client.consume("t", "g")
    client.publish_tensor("t", array)
    tensor = consumer.recv().tensor()
    assert tensor.dtype == array.dtype and tensor.flags.writeable
    assert np.array_equal(tensor, array)


def test_by_the_other_ways_too(broker, client):
    """PUSH brings it whole, REQ too; SUB takes it whole, TTP as it comes."""
    with transfer.Context() as context, TtpClient("127.0.0.1", broker.ports["ttp"]) as ttp:
        sub, push = context.socket(transfer.SUB), context.socket(transfer.PUSH)
        with sub, push:
            sub.rcvtimeo = 10_000
            sub.subscribe(b"t")
            sub.connect(broker.endpoints["subscriptions"])
            push.connect(broker.endpoints["pushes"])
            for one in (sub, push):
                one.wait_for_peers(1, 10)
            ttp.subscribe("t")
            wait_for(lambda: sub.peers()[0])
            consumer = client.consume("t", "g")
            push.send_multipart([b"t", PAYLOAD])
            assert bytes(consumer.recv().data) == PAYLOAD
            assert sub.recv_multipart() == [b"t", PAYLOAD]
            assert bytes(ttp.recv().data) == PAYLOAD
            array = np.arange(5 * MIB, dtype=np.int32)
            client.publish_tensor("t", array)
            assert np.array_equal(consumer.recv().tensor(), array)
            assert np.array_equal(sub.recv_tensor(), array)
            assert bytes(ttp.recv().data) == array.tobytes()


def test_a_program_that_knows_no_pieces_gets_it_whole(client, raw):
    client.publish("t", PAYLOAD)
    raw.join("t")
    head, parts = raw.hear()
    assert (head.op, bytes(parts[0].buffer)) == (Op.DELIVER, PAYLOAD)


def test_the_order_of_one_publisher(client):
    sizes = [LARGE_FROM, 10, LARGE_FROM * 2, LARGE_FROM, 100, 200]
    for size in sizes:
        client.publish("t", bytes(size), wait=False)
    client.flush()
    consumer = client.consume("t", "g", begin="old")
    assert [len(consumer.recv().data) for _ in sizes] == sizes


def test_small_and_large_ones_in_turns(client):
    consumer = client.consume("t", "g", begin="old", window=100)
    with client.batch():
        for number in range(4):
            client.publish("t", b"%d" % number, wait=False)
            client.publish("t", bytes([number]) * LARGE_FROM, wait=False)
    client.flush()
    found = []
    with client.batch():
        while len(found) < 8:
            messages = consumer.recv_many()
            consumer.ack(*messages)
            found += messages
    consumer.flush()
    assert [len(one.data) for one in found] == [1, LARGE_FROM] * 4
    assert [bytes(one.data[:1]) for one in found[1::2]] == [bytes([number]) for number in range(4)]


def test_threads_publish_while_a_large_one_is_on_its_way(client):
    consumer = client.consume("small", "g")
    threads = [
        threading.Thread(target=client.publish, args=(topic, payload))
        for topic, payload in (("t", PAYLOAD * 4), ("t", PAYLOAD), *[("small", b"x")] * 5)
    ]
    for thread in threads:
        thread.start()
    assert [bytes(consumer.recv().data) for _ in range(5)] == [b"x"] * 5
    for thread in threads:
        thread.join(20)
    large = client.consume("t", "g", begin="old")
    assert sorted(len(large.recv().data) for _ in range(2)) == [len(PAYLOAD), len(PAYLOAD) * 4]


# -- while it comes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [b"live/t", b"t"])
def test_the_first_bytes_go_out_before_the_last_are_in(broker, raw, topic):
    peer = Peer(broker).subscribe(topic)
    try:
        raw.begin(1, 2 * MIB, topic)
        assert raw.granted() == (1, 2 * MIB)
        raw.piece(1, b"a" * MIB)
        assert peer.exactly(HEADER_SIZE + len(topic) + MIB).endswith(b"a" * MIB)
        raw.piece(1, b"b" * MIB)
        raw.end(1)
        assert peer.exactly(MIB) == b"b" * MIB
        assert raw.kept() == 1
    finally:
        peer.socket.close()


def test_nobody_waits_for_one_that_stops_in_the_middle(broker, client, raw):
    raw.begin(1, 64 * MIB)
    assert raw.granted() == (1, GRANT)
    raw.piece(1, bytes(MIB))
    client.publish("t", b"small")
    client.publish("t", PAYLOAD)
    consumer = client.consume("t", "g", begin="old")
    assert [len(consumer.recv().data) for _ in range(2)] == [5, len(PAYLOAD)]


def test_what_is_granted_goes_on_with_what_came(raw):
    raw.begin(1, 24 * MIB)
    position = sent = 0
    while sent < 24 * MIB:
        while position <= sent:
            number, position = raw.granted()
            assert number == 1 and sent < position <= min(sent + GRANT, 24 * MIB)
        raw.piece(1, bytes(MIB))
        sent += MIB
    raw.end(1)
    assert raw.kept() == 1


def test_who_stops_in_the_middle_is_told(tmp_path):
    own = NativeSettings(FREE, FREE, FREE, stall_timeout=0.01)
    with running(tmp_path, native=own) as broker, program(broker.endpoints["requests"]) as raw:
        raw.begin(1, 2 * MIB)
        raw.piece(1, bytes(MIB))
        number, reason = raw.refused()
        assert number == 1 and "stalled" in reason
        raw.piece(1, bytes(MIB))  # is passed over
        raw.end(1)
        assert quiet(broker)
        assert broker.fronts["native"].counters["stalled"] == 1
        raw.say(encode(Op.PUBLISH, 2, b"t"), b"others go on")
        assert raw.kept() == 2


def test_where_nobody_subscribes_nothing_is_read_again(broker, raw, client):
    """The socket for subscribers hears of everything; but there are none."""
    client.publish("t", b"first")
    for number in (1, 2):
        raw.begin(number, MIB)
    for number in (1, 2):
        raw.piece(number, bytes(MIB))
        raw.end(number)
        assert raw.kept() == number
    assert not broker.hub.counts["spilled"] and not broker.hub.fanout.behind


def test_one_too_large_for_subscribers_is_not_for_them(tmp_path):
    own = NativeSettings(FREE, FREE, FREE, max_message=MIB)
    with running(tmp_path, native=own) as broker, transfer.Context() as context:
        with BrokerClient(broker.endpoints["requests"], context=context, timeout=10) as client:
            with context.socket(transfer.SUB) as sub:
                sub.subscribe(b"t")
                sub.rcvtimeo = 10_000
                sub.connect(broker.endpoints["subscriptions"])
                sub.wait_for_peers(1, 10)
                client.publish("t", PAYLOAD)
                client.publish("t", b"small")
                assert sub.recv_multipart() == [b"t", b"small"]
                assert client.consume("t", "g", begin="old").recv().data.nbytes == len(PAYLOAD)
                assert broker.fronts["native"]._publisher.dropped == 1


# -- who goes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["live/t", "t"])
def test_a_publisher_that_goes_in_the_middle(broker, client, topic):
    with TtpClient("127.0.0.1", broker.ports["ttp"]) as ttp:
        ttp.subscribe(topic)
        with program(broker.endpoints["requests"]) as raw:
            raw.begin(1, 3 * MIB, topic.encode())
            raw.granted()
            raw.piece(1, bytes(MIB))
            raw.piece(1, bytes(MIB))
            wait_for(lambda: broker.hub._uploads)
        with pytest.raises(TransferError):  # it has a part of a message
            ttp.recv()
    assert quiet(broker)
    assert broker.hub.counts["broken_off"] == 1
    assert broker.fronts["native"].counters["broken_off"] == 1, "it was seen that it has gone"
    assert broker.hub.store.topics[topic].position == 0
    if topic == "t":
        client.publish(topic, PAYLOAD)
        assert bytes(client.consume(topic, "g", begin="old").recv().data) == PAYLOAD


def test_a_broker_that_goes_in_the_middle(tmp_path):
    with running(tmp_path) as broker:
        client = BrokerClient(broker.endpoints["requests"], timeout=10)
        consumer = client.consume("t", "g")
        client.publish("t", PAYLOAD)
        raised = []

        def publish():
            with pytest.raises(TransferError) as error:
                while True:
                    client.publish("t", PAYLOAD)
            raised.append(error.type)

        thread = threading.Thread(target=publish)
        thread.start()
        wait_for(lambda: broker.hub._uploads)
    with client:
        thread.join(20)
        with pytest.raises(Broken):
            while True:
                consumer.recv()
    assert raised == [Broken]
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"], timeout=10) as client:
        topic = broker.hub.store.topics["t"]
        consumer = client.consume("t", "other", begin="old")
        for _ in range(topic.kept):
            assert bytes(consumer.recv().data) == PAYLOAD
        with pytest.raises(Again):
            consumer.recv(timeout=0)


def test_a_consumer_that_goes_in_the_middle(broker, client):
    """Whoever comes next gets all of it."""
    client.publish("t", PAYLOAD)
    with program(broker.endpoints["requests"]) as raw:
        raw.join("t", pieces=True)
        place = raw.offered()
        assert place == (0, 1, len(PAYLOAD))
        raw.fetch(place, 4 * MIB)
        assert raw.ranges(4 * MIB) == PAYLOAD[: 4 * MIB]
    message = client.consume("t", "g").recv()
    assert (bytes(message.data), message.attempt) == (PAYLOAD, 2)


def test_a_consumer_that_comes_again(tmp_path):
    with running(tmp_path) as broker:
        endpoint = broker.endpoints["requests"]
        client = BrokerClient(endpoint, timeout=20, reconnect=True)
        consumer = client.consume("t", "g", begin="old")
        client.publish("t", PAYLOAD)
        client.publish("t", b"small")
        client.ready()  # it is offered
    with client, running(tmp_path, native=NativeSettings(endpoint, FREE, FREE)):
        message = consumer.recv()
        assert (bytes(message.data), message.attempt) == (PAYLOAD, 2)
        consumer.ack(message, wait=True)
        assert bytes(consumer.recv().data) == b"small"


def test_one_that_nobody_can_process(client):
    consumer = client.consume("t", "g")
    client.publish("t", PAYLOAD)
    for attempt in (1, 2, 3):
        message = consumer.recv()
        assert (message.attempt, len(message.data)) == (attempt, len(PAYLOAD))
        consumer.nack(message, "no")
    client.publish("t", b"next")
    assert bytes(consumer.recv().data) == b"next"


def test_a_delivery_that_has_timed_out(client, raw):
    """It is offered again, and what was begun of it ends."""
    client.publish("t", PAYLOAD)
    raw.join("t", pieces=True, timeout=0.05)
    first = raw.offered()
    raw.fetch(first, MIB)
    head, _ = raw.hear(Op.STALE)
    assert decode_deliveries(head) == [(0, 1, 0)]
    assert raw.offered() == first._replace(attempt=2)


def test_what_was_begun_and_is_given_to_another(client):
    """A client goes on with what is offered to it next."""
    client.publish("t", PAYLOAD)
    consumer = client.consume("t", "g", begin="old")
    wait_for(lambda: consumer.waiting)
    offered = consumer._messages[0]
    client.send(lambda: encode_place(Op.FETCH, offered.number, Place(0, 7, MIB)))  # STALE is for attempt 7
    consumer._messages[0].attempt = 7
    client.publish("t", b"next")
    assert bytes(consumer.recv().data) == b"next"
    assert list(consumer.stale)[-1] == (0, 7)
