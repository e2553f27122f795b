"""A message whose head cannot be read holds up nobody, and is told; a number that joins another group."""

from __future__ import annotations

import threading

import pytest

import transfer
from tests.broker.http_requests import until
from tests.broker.in_process_broker import running
from tests.broker.native_peers import payloads, receive, wait_for
from tests.broker.native_programs import MIB, program
from transfer.broker.clients.native import BrokerClient
from transfer.broker.core.message import Front, Message
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.protocols.native import Op, encode, encode_deliveries
from transfer.broker.protocols.native_pieces import Part, pack_part

FREE = "tcp://127.0.0.1:0"
#: heads that are no description of 4 bytes in parts
BAD = {
    "cut short": b"\xff" * 5,
    "too long": pack_part(Part(0, b"", 9)),
    "too short": pack_part(Part(0, b"", 3)),
    "no header": pack_part(Part(1, b"", 4)),
    "a header for nothing": pack_part(Part(0, b"x" * 48, 4)),
}


@pytest.fixture
def broker(tmp_path):
    own = NativeSettings(FREE, FREE, FREE, queues={"pulled": FREE})
    with running(tmp_path, native=own) as one:
        yield one


def publish(broker, topic, *messages):
    """Publishes messages of these (payload, head) in one turn of the loop."""
    done = threading.Event()

    def work():
        for payload, head in messages:
            broker.hub.publish(Message(topic, (payload,), Front.NATIVE, head))
        done.set()

    broker.call(work)
    assert done.wait(10)


def group(broker, topic, name):
    (found,) = (one.group for one in broker.hub.groups.served if one.named[1:3] == (topic, name))
    return found


@pytest.mark.parametrize("head", BAD.values(), ids=BAD)
def test_a_consumer_gets_the_others_and_it_becomes_a_dead_letter(broker, head):
    with BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("t", "g", begin="old")
        publish(broker, "t", (b"one", b""), (b"bad!", head), (b"two", b""))
        got = receive(consumer, 2)
        assert payloads(got) == [b"one", b"two"]
        consumer.ack(*got, wait=True)
        until(broker.letters.count, 1)
        (letter,) = broker.letters.all()
        assert (letter.delivery_id, letter.payload, letter.head) == ("t/g/1", b"bad!", head)
        assert "cannot be split into parts" in letter.reason and letter.attempts == 1
        assert broker.hub.counts["unreadable"] == 1
        until(lambda: group(broker, "t", "g").cursor, 3)


def test_a_large_one_is_not_offered(broker):
    with program(broker.endpoints["requests"]) as one:
        one.join("t", pieces=True)
        publish(broker, "t", (bytes(9 * MIB), b"\xff" * 5), (bytes(9 * MIB), b""))
        assert one.offered().offset == 1
        until(broker.letters.count, 1)


def test_who_pulls_gets_the_others(broker):
    with transfer.Context() as context, context.socket(transfer.PULL) as pull:
        pull.connect(broker.endpoints["queue pulled"])
        publish(broker, "pulled", (b"one", b""), (b"bad!", b"\xff" * 5), (b"two", b""))
        assert [bytes(pull.recv_multipart()[-1]) for _ in range(2)] == [b"one", b"two"]
        until(broker.letters.count, 1)
        until(lambda: group(broker, "pulled", "pull").cursor, 3)


def test_who_has_subscribed_does_without(broker):
    with transfer.Context() as context, context.socket(transfer.SUB) as sub:
        sub.subscribe("t")
        sub.connect(broker.endpoints["subscriptions"])
        sub.wait_for_peers(1, 10)
        wait_for(lambda: not broker.fronts["native"]._publisher.idle)
        publish(broker, "t", (b"one", b""), (b"bad!", b"\xff" * 5), (b"two", b""))
        assert [bytes(sub.recv_multipart()[-1]) for _ in range(2)] == [b"one", b"two"]
        assert broker.hub.counts["unreadable"] == 1


def test_a_number_that_joins_another_group_leaves_the_first(broker):
    endpoint = broker.endpoints["requests"]
    with program(endpoint) as one, BrokerClient(endpoint) as client:
        one.join("t", "first", 7)
        client.publish_many("t", [b"one", b"two"])
        one.hear(Op.DELIVER)
        one.join("t", "second", 7)
        first, second = (group(broker, "t", name) for name in ("first", "second"))
        assert (first.consumers, second.consumers) == (0, 1)
        assert first.held == 0, "what it held is free for others"
        assert payloads(receive(client.consume("t", "first"), 2)) == [b"one", b"two"]
        one.hear(Op.DELIVER)
        one.say(encode(Op.ACK, 7, encode_deliveries([(0, 1, 0), (1, 1, 0)]), 2))
        one.hear(Op.ACKED)
        until(lambda: second.cursor, 2)
        one.join("t", "second", 7)
        assert second.consumers == 1, "the same once more changes nothing"
