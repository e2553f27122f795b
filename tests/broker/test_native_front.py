"""The broker's own front through real sockets: publishing, groups, tensors, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import transfer
from tests.broker.in_process_broker import running
from tests.broker.native_peers import payloads, receive, wait_for
from transfer.broker.clients.native import BrokerClient
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.protocols.native import MOST, Join, Op, decode, encode, encode_join, encode_words
from transfer.transports.errors import Again, Broken, TransferError, UsageError

#: sockets that a test leaves to its end
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

FREE = "tcp://127.0.0.1:0"
MILLISECONDS = 10_000


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path, first_delay=0.01) as broker:
        yield broker


@pytest.fixture
def sockets():
    with transfer.Context() as context:

        def connected(kind, endpoint, subscribe=None, **options):
            socket = context.socket(kind)
            socket.rcvtimeo = socket.sndtimeo = MILLISECONDS
            socket.linger = 0
            for name, value in options.items():
                setattr(socket, name, value)
            if subscribe is not None:
                socket.subscribe(subscribe)
            socket.connect(endpoint)
            socket.wait_for_peers(1, 10)
            return socket

        yield connected
        context.destroy(0)


# -- publishing ------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_on_the_disk(tmp_path):
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        assert client.publish("t", b"one") == 1
        assert client.publish_many("t", [b"two", b"three"]) == range(2, 4)
        number = client.publish("t", b"four", b"parts", wait=False)
        client.wait_kept(number)
        assert client.unacknowledged == 0
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("t", "g", begin="old")
        messages = receive(consumer, 4)
        assert [[bytes(part.data) for part in one.parts] for one in messages] == [
            [b"one"], [b"two"], [b"three"], [b"four", b"parts"]
        ]  # fmt: skip
        assert [(one.offset, one.attempt) for one in messages] == [(n, 1) for n in range(4)]


def test_very_many_without_waiting(client):
    """The broker tells of a run of numbers that is longer than any message may be."""
    for _ in range(4):
        client.publish_many("t", [b"x"] * MOST, wait=False)
    for _ in range(2000):
        client.publish("t", b"y", wait=False)
    client.flush()
    assert client.unacknowledged == 0


def test_threads_share_a_client(client):
    """One waits for messages that others publish, and none takes another's answers."""
    consumer = client.consume("t", "g")
    found: list[bytes] = []

    def consume():
        while len(found) < 200:
            messages = consumer.recv_many()
            consumer.ack(*messages)
            found.extend(payloads(messages))

    def publish(name):
        for n in range(50):
            client.publish("t", b"%d/%d" % (name, n))

    threads = [threading.Thread(target=consume)]
    threads += [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    consumer.flush()
    assert sorted(found) == sorted(b"%d/%d" % (name, n) for name in range(4) for n in range(50))
    for name in b"0123":
        mine = [int(one[2:]) for one in found if one[0] == name]
        assert mine == sorted(mine), "each publisher's in order"


@pytest.mark.parametrize("payload", [b"", b"small", bytes(70_000), bytes(range(256)) * 20_000])
def test_payloads_of_all_sizes(client, payload):
    client.publish("t", payload, b"", payload)
    message = client.consume("t", "g", begin="old").recv()
    assert [bytes(part.data) for part in message.parts] == [payload, b"", payload]


@pytest.mark.parametrize("shape", [(), (3, 5), (70, 250), (1250, 1000)])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_tensors_arrive_as_they_are(broker, client, sockets, shape, compression):
    listener = sockets(transfer.SUB, broker.endpoints["subscriptions"], b"weights")
    consumer = client.consume("weights", "g")
    push = sockets(transfer.PUSH, broker.endpoints["pushes"], compression=compression)
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    push.send_tensor(array, topic="weights")
    received = listener.recv_tensor()
    assert (received.dtype, received.shape) == (array.dtype, array.shape)
    assert np.array_equal(received, array)
    message = consumer.recv()
    assert message.parts[0].meta is not None
    again = broker.hub.store.read(broker.hub.store.topic("weights"), 0)
    assert again[0].head, "its header is kept too"
    consumer.ack(message, wait=True)


def test_several_tensors_in_one_message(broker, sockets):
    listener = sockets(transfer.SUB, broker.endpoints["subscriptions"], b"")
    push = sockets(transfer.PUSH, broker.endpoints["pushes"])
    arrays = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": np.ones(50_000),
        "c": np.zeros(0, np.uint8),
    }
    push.send_tensors(arrays, meta={"step": 7}, topic="batch")
    received, meta = listener.recv_tensors()
    assert meta == {"step": 7}
    assert received.keys() == arrays.keys()
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert np.array_equal(received[name], array)


def test_plain_requests_are_answered_when_they_are_kept(broker, sockets):
    request = sockets(transfer.REQ, broker.endpoints["requests"])
    request.send_multipart([b"t", b"payload", b"more"])
    assert json.loads(request.recv()) == {"kept": True}
    [message] = broker.hub.store.read(broker.hub.store.topic("t"), 0)
    assert bytes(message.payload) == b"payloadmore"
    request.send(b"only a topic")
    answer = json.loads(request.recv())
    assert answer["kept"] is False
    assert "topic" in answer["error"]
    request.send_multipart([b"t" * 300, b"x"])
    assert json.loads(request.recv())["kept"] is False
    request.send_multipart([b"\xff", b"x"])
    assert "UTF-8" in json.loads(request.recv())["error"]


def test_a_request_that_correlates_is_answered_with_its_number(broker, sockets):
    request = sockets(transfer.REQ, broker.endpoints["requests"])
    request.req_correlate = True
    for parts, kept in (([b"plain", b"x"], True), ([b"one part only"], False)):
        request.send_multipart(parts)
        assert json.loads(request.recv())["kept"] is kept


def test_subscriptions_are_prefixes(broker, client, sockets):
    listener = sockets(transfer.SUB, broker.endpoints["subscriptions"], b"sensors/")
    for topic in ("sensors/a", "other", "sensors", "sensors/b"):
        client.publish(topic, topic.encode())
    found = [listener.recv_multipart() for _ in range(2)]
    assert [parts[-1] for parts in found] == [b"sensors/a", b"sensors/b"]


# -- groups ----------------------------------------------------------------------------------------------


def test_begin_is_old_or_new(client):
    client.publish_many("t", [b"1", b"2"])
    old, new = client.consume("t", "old", begin="old"), client.consume("t", "new")
    client.publish("t", b"3")
    assert payloads(receive(old, 3)) == [b"1", b"2", b"3"]
    assert payloads(receive(new, 1)) == [b"3"]


def test_two_share_and_windows_hold(broker, client):
    client.publish_many("t", [b"%d" % n for n in range(10)])
    with BrokerClient(broker.endpoints["requests"]) as other:
        first = client.consume("t", "g", begin="old", window=3)
        second = other.consume("t", "g", window=2)
        mine, theirs = receive(first, 3), receive(second, 2)
        for consumer in (first, second):
            with pytest.raises(Again):
                consumer.recv(timeout=0.1)
        found = mine + theirs
        while len(found) < 10:
            first.ack(*mine)
            second.ack(*theirs)
            mine = first.recv_many(timeout=0.2) if len(found) < 10 else []
            found += mine
            if len(found) < 10:
                theirs = second.recv_many(timeout=0.2)
                found += theirs
        assert sorted(int(bytes(one.data)) for one in found) == list(range(10))


def test_a_nack_brings_it_again_and_then_to_the_dead(broker, client):
    client.publish("t", b"poison", b"and more")
    consumer = client.consume("t", "g", begin="old")
    for attempt in (1, 2, 3):
        message = consumer.recv()
        assert message.attempt == attempt
        consumer.nack(message, f"reason {attempt}")
    client.publish("t", b"good")
    assert bytes(consumer.recv().data) == b"good"
    [letter] = wait_for(lambda: broker.letters.find("t/g/0"))
    assert (letter.reason, letter.attempts, letter.payload) == ("reason 3", 3, b"poisonand more")


def test_without_retry_it_is_dead_at_once(broker, client):
    client.publish_many("t", [b"poison", b"good"])
    consumer = client.consume("t", "g", begin="old")
    poison, good = receive(consumer, 2)
    consumer.nack(poison, "cannot be read", retry=False)
    consumer.ack(good, wait=True)
    [letter] = wait_for(lambda: broker.letters.find("t/g/0"))
    assert (letter.attempts, letter.reason) == (1, "cannot be read")
    wait_for(lambda: broker.hub.groups.served[0].group.cursor == 2)


def test_a_message_that_is_held_for_too_long_goes_on(client):
    client.publish("t", b"x")
    consumer = client.consume("t", "g", begin="old", timeout=0.1)
    first = consumer.recv()
    second = consumer.recv(timeout=5)
    assert (second.offset, second.attempt) == (0, 2)
    with pytest.raises(Broken, match="too late"):
        consumer.ack(first, wait=True)
    assert list(consumer.stale) == [(0, 1)]
    consumer.ack(second, wait=True)
    assert list(consumer.stale) == [(0, 1)]


def test_time_outs_are_each_consumers_own_and_survive_a_restart(tmp_path):
    """The group is there already when somebody joins with a time-out."""
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        client.consume("t", "g", begin="old")
        client.publish("t", b"x")
    with running(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        consumer = client.consume("t", "g", timeout=0.1)
        assert [consumer.recv(timeout=5).attempt for _ in range(2)] == [2, 3]


_HOLDER = """
import sys
from transfer.broker.clients.native import BrokerClient
client = BrokerClient(sys.argv[1])
consumer = client.consume("t", "g", begin="old", window=10)
print(len([consumer.recv() for _ in range(10)]), flush=True)
sys.stdin.read()
"""


def test_a_killed_consumers_messages_go_to_another(broker, client):
    client.publish_many("t", [b"%d" % n for n in range(10)])
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, broker.endpoints["requests"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"10\n"
        consumer = client.consume("t", "g", window=10)
        with pytest.raises(Again):
            consumer.recv(timeout=0.2)
        holder.kill()
        begin = time.monotonic()
        messages = receive(consumer, 10)
        assert time.monotonic() - begin < 2.5
        assert {one.attempt for one in messages} == {2}
        consumer.ack(*messages, wait=True)
    assert broker.hub.groups.served[0].group.cursor == 10


def test_who_leaves_gives_back_at_once(client):
    client.publish("t", b"x")
    first = client.consume("t", "g", begin="old")
    assert first.recv().attempt == 1
    second = client.consume("t", "g")
    first.leave()
    first.leave()
    assert second.recv(timeout=5).attempt == 2


def test_acknowledgements_of_very_many_at_once(client):
    client.publish_many("t", [b"x"] * MOST)
    client.publish_many("t", [b"x"] * 10)
    consumer = client.consume("t", "g", begin="old", window=MOST)
    messages = receive(consumer, MOST)
    consumer.ack(*messages, wait=True)
    more = receive(consumer, 10)
    consumer.ack(*messages, *more, wait=True)  # those of before are harmless
    assert not consumer.stale


# -- what is refused -------------------------------------------------------------------------------------


def test_topics_that_are_none(broker, client):
    with pytest.raises(UsageError, match="the topic"):
        client.publish("t" * 300, b"x")
    with pytest.raises(TransferError):
        client.consume("", "g")
    with pytest.raises(TransferError, match="begin"):
        client.consume("t", "g", begin="sideways")
    with pytest.raises(TransferError, match="window"):
        client.consume("t", "g", window=0)
    client.publish("t", b"it goes on")


def test_nobody_acknowledges_where_nothing_is_kept(tmp_path):
    with (
        running(tmp_path, transient=(pattern(Kind.PREFIX, "now/"),)) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        client.publish("now/x", b"told at once")
        with pytest.raises(UsageError, match="is not durable"):
            client.consume("now/x", "g")


def test_too_large_a_message_ends_its_connection_only(tmp_path):
    with running(tmp_path, native=NativeSettings(FREE, FREE, FREE, max_message=1 << 20)) as broker:
        endpoint = broker.endpoints["requests"]
        with BrokerClient(endpoint, timeout=5) as other, BrokerClient(endpoint, timeout=5) as client:
            client.publish("t", bytes(1 << 19))
            with pytest.raises((Broken, Again)):
                client.publish("t", bytes(1 << 22))
            other.publish("t", b"alive")


GARBAGE = [
    b"\1", b"\0" * 16, b"\2" + bytes(15), b"\1\143" + bytes(14), b"\xff" * 16, bytes(16) + b"x" * 100,
    encode(Op.PUBLISH, 1, b"t"), encode(Op.PUBLISH, 1, b"\xff"), encode(Op.ACK, 7, b"123"),
    encode(Op.ACK, 7), encode(Op.NACK, 7, b""), encode(Op.LEAVE, 7), encode(Op.KEPT, 1),
    encode(Op.JOIN, 7, b"{"), encode(Op.JOIN, 7, b"[]"), encode(Op.JOIN, 7, encode_words({"topic": "t"})),
    encode(Op.JOIN, 7, b'{"topic": "\\ud800", "group": "g"}'),
    encode(Op.JOIN, 7, encode_words({"topic": "t", "group": "g", "window": -1})),
    encode(Op.JOIN, 7, encode_words({"topic": "t", "group": "g", "more": 1})),
    encode(Op.JOIN, 7, b'{"topic": "t", "group": "g", "timeout": NaN}'),
    encode(Op.JOIN, 7, encode_words({"topic": "a\0b", "group": "g"})),
    encode(Op.JOIN, 7, b"[" * 100_000), encode(Op.PUBLISH_MANY, (1 << 64) - 2, b"t", 2),
]  # fmt: skip


def test_garbage_hurts_nobody(broker, client, sockets, caplog):
    dealer = sockets(transfer.DEALER, broker.endpoints["requests"])
    for head in GARBAGE:
        dealer.send_multipart([head])
        dealer.send_multipart([head, b"part", b"part", b"part"])
    dealer.send_multipart([encode(Op.JOIN, 9, encode_join(Join("t", "g")))])
    while True:  # those before it are answered, or not: the connection goes on
        head = decode(dealer.recv_multipart()[0])
        if head.op is Op.JOINED and head.number == 9:
            break
        assert head.op is Op.REFUSED or head.op is Op.KEPT
    client.publish("t", b"alive")
    assert not [record for record in caplog.records if record.exc_info], "a callback of the loop failed"


def test_consumers_that_have_not_joined_are_told(broker, sockets):
    dealer = sockets(transfer.DEALER, broker.endpoints["requests"])
    dealer.send_multipart([encode(Op.ACK, 5)])
    head = decode(dealer.recv_multipart()[0])
    assert (head.op, head.number) == (Op.REFUSED, 5)
    assert b"has not joined" in head.body
