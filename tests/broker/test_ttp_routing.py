"""Streams of TTP by programs that know TensorMQ's document only: a header of 32 bytes before each frame."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from tests.broker.single_front import is_closed, single_front
from tests.broker.test_direct_delivery import eventually
from tests.broker.ttp_peers import subscribed_to_all
from transfer.broker.delivery import streaming_publish
from transfer.broker.delivery.streaming_publish import MOST_GATHERED
from transfer.broker.fronts.ttp import TtpFront, TtpSettings

HEADER = struct.Struct(">IHBBQIIQ")
SUBSCRIBE, PUBLISH, META, CHUNK, HEARTBEAT, ERROR = 2, 3, 4, 5, 7, 8
EOF, LZ4 = 1, 2
MIB = 1 << 20


class Raw:
    """A connection that says and reads frames."""

    def __init__(self, broker):
        self.socket = socket.create_connection(("127.0.0.1", broker.port), 10)

    def say(self, kind, topic=b"", meta=b"", data=b"", flags=0, stream=6):
        head = HEADER.pack(0x544D5150, 2, kind, flags, stream, len(topic), len(meta), len(data))
        self.socket.sendall(head + topic + meta)
        self.socket.sendall(data)

    def hear(self):
        """(type, flags, stream, topic, metadata, data)"""
        magic, version, kind, flags, stream, *sizes = HEADER.unpack(self.exactly(32))
        assert (magic, version) == (0x544D5150, 2)
        return (kind, flags, stream, *map(self.exactly, sizes))

    def exactly(self, size):
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            assert got, "the broker closed the connection"
            view = view[got:]
        return bytes(data)

    def subscribe(self, topic):
        self.say(SUBSCRIBE, topic)
        self.say(HEARTBEAT)
        assert self.hear()[0] == HEARTBEAT
        return self


@pytest.fixture
def started(tmp_path):
    """Starts brokers of this front, and ends them with the connections that were made."""
    made, brokers = [], []

    def start(*, keep=False, peers=2, settings=None):
        manager = single_front(
            tmp_path, lambda hub, lines: TtpFront(hub, lines, settings), durable=lambda name: keep
        )
        brokers.append(manager)
        broker = manager.__enter__()
        made.extend(Raw(broker) for _ in range(peers))
        return (broker, *made)

    yield start
    for one in made:
        one.socket.close()
    for manager in brokers:
        manager.__exit__(None, None, None)


def kept(broker, topic="t"):
    """The payloads of a topic that are on the disk."""

    def read():
        store = broker.hub.store
        found = store.topic(topic)
        low, _ = store.range(found)
        return [bytes(one.payload) for one in store.read(found, low, nbytes=1 << 30)]

    return broker.call(read)


@pytest.mark.parametrize("keep", [False, True])
def test_each_frame_goes_on_at_once_as_it_came(started, keep):
    broker, publisher, subscriber = started(keep=keep)
    recorder = subscribed_to_all(broker)
    subscriber.subscribe(b"models/*/grads")
    name = b"models/a/grads"
    frames = [
        (META, 0, 6, name, b'{"a":1}', b"the metadata's data"),
        (CHUNK, LZ4, 6, name, b'{"part":0}', b"one"),
        (CHUNK, 0x20, 6, b"", b"not JSON", b""),
        (CHUNK, 0, 6, name, b"", os.urandom(300_000)),
        (CHUNK, EOF | LZ4, 6, b"", b"", b"last"),
    ]
    for kind, flags, stream, topic, meta, data in frames:
        publisher.say(kind, topic, meta, data, flags, stream)
        assert subscriber.hear() == (kind, flags, stream, topic, meta, data)
    whole = b"".join(frame[5] for frame in frames)
    broker.until(lambda: recorder.received == [(name.decode(), whole)])
    if keep:
        broker.until(lambda: broker.hub.store.topic(name.decode()).kept == 1)
        assert kept(broker, name.decode()) == [whole]


@pytest.mark.parametrize("keep", [False, True])
def test_a_chunk_without_meta_is_routed_by_its_own_header(started, keep):
    broker, publisher, subscriber = started(keep=keep)
    subscriber.subscribe(b"t")
    publisher.say(CHUNK, b"t", b"", b"one")
    assert subscriber.hear() == (CHUNK, 0, 6, b"t", b"", b"one")
    publisher.say(CHUNK, b"t", b"", b"two", EOF)
    assert subscriber.hear() == (CHUNK, EOF, 6, b"t", b"", b"two")
    publisher.say(CHUNK, b"", b"", b"of what?")
    assert publisher.hear()[:3] == (ERROR, 0, 6)
    if keep:
        broker.until(lambda: broker.hub.store.topic("t").kept == 1)
        assert kept(broker) == [b"onetwo"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_stream_of_70_mb_without_nbytes_is_taken(started, keep):
    broker, publisher, subscriber = started(keep=keep)
    subscriber.subscribe(b"t")
    chunk = os.urandom(7 * MIB)
    sizes = []

    def hear():
        flags = 0
        while not flags & EOF:
            _, flags, _, _, _, data = subscriber.hear()
            assert data in (chunk, b"")
            sizes.append(len(data))

    hearing = threading.Thread(target=hear)
    hearing.start()
    publisher.say(META, b"t")
    for _ in range(10):
        publisher.say(CHUNK, b"t", b"", chunk)
    assert broker.call(lambda: broker.front.shared.gathered) <= 2 * MIB
    publisher.say(CHUNK, b"t", b"", b"", EOF)
    hearing.join(30)
    assert sizes == [0, *[len(chunk)] * 10, 0]
    if keep:
        broker.until(lambda: broker.hub.store.topic("t").kept == 1)
        (payload,) = kept(broker)
        assert payload == chunk * 10


@pytest.mark.parametrize("keep", [False, True])
def test_a_publisher_that_dies_in_the_middle_of_a_stream(started, keep):
    broker, publisher, subscriber = started(keep=keep)
    subscriber.subscribe(b"t")
    publisher.say(META, b"t")
    publisher.say(CHUNK, b"t", b"", bytes(3 * MIB))
    assert [subscriber.hear()[0] for _ in range(2)] == [META, CHUNK]
    publisher.socket.close()
    kind, _, stream, _, _, data = subscriber.hear()
    assert (kind, stream) == (ERROR, 6) and b"broken_off" in data
    broker.until(lambda: not broker.hub._uploads and not broker.hub._writer.open)
    subscriber.say(PUBLISH, b"t", b"", b"next")
    assert subscriber.hear()[5] == b"next"
    if keep:
        broker.until(lambda: broker.hub.store.topic("t").kept == 1)
        assert kept(broker) == [b"next"]
    assert broker.call(lambda: (broker.front.shared.gathered, broker.front.shared.used)) == (0, set())


def test_a_publisher_that_dies_in_the_middle_of_a_large_frame(started):
    _, publisher, subscriber = started()
    subscriber.subscribe(b"t")
    publisher.socket.sendall(HEADER.pack(0x544D5150, 2, CHUNK, 0, 6, 1, 0, 100 * MIB) + b"t" + bytes(MIB))
    assert subscriber.exactly(33 + MIB)
    publisher.socket.close()
    assert is_closed(subscriber.socket)


def test_a_slow_subscriber_pauses_the_publisher_of_a_stream_and_loses_nothing(started):
    broker, publisher, subscriber = started()
    subscriber.subscribe(b"t")
    chunk, count = os.urandom(MIB), 150

    def publish():
        for number in range(count):
            publisher.say(CHUNK, b"t", b"", chunk, EOF if number == count - 1 else 0)

    publishing = threading.Thread(target=publish)
    publishing.start()
    broker.until(lambda: any(one.paused for one in broker.front._connections))
    assert broker.call(lambda: max(one.queued for one in broker.front._connections)) < 70 * MIB
    for _ in range(count):
        assert subscriber.hear()[5] == chunk
    publishing.join(10)


def test_who_subscribes_in_the_middle(started):
    _, publisher, early, late = started(keep=True, peers=3)
    early.subscribe(b"t")
    publisher.say(META, b"t", b'{"a":1}')
    publisher.say(CHUNK, b"t", b"", b"one")
    assert [early.hear()[0] for _ in range(2)] == [META, CHUNK]
    late.subscribe(b"t")
    publisher.say(CHUNK, b"t", b"", b"two", EOF)
    assert early.hear()[5] == b"two"
    frames = [late.hear() for _ in range(3)]
    assert [frame[0] for frame in frames] == [META, CHUNK, CHUNK]
    assert [frame[5] for frame in frames] == [b"", b"one", b"two"]
    publisher.say(PUBLISH, b"t", b"", b"next")
    assert early.hear()[5] == late.hear()[5] == b"next"


def test_a_large_stream_for_who_subscribes_in_the_middle_comes_from_the_log(started):
    _, publisher, early, late = started(keep=True, peers=3)
    early.subscribe(b"t")
    chunk = os.urandom(MIB)
    for number in range(3):
        publisher.say(CHUNK, b"t", b"", chunk)
        assert early.hear()[5] == chunk
        if not number:
            late.subscribe(b"t")
    publisher.say(CHUNK, b"t", b"", b"", EOF)
    assert early.hear()[1] == EOF
    assert [late.hear()[5] for _ in range(5)] == [b"", chunk, chunk, chunk, b""]
    publisher.say(PUBLISH, b"t", b"", b"next")
    assert early.hear()[5] == late.hear()[5] == b"next"


def test_two_publishers_with_one_stream_id_are_told_apart(started):
    _, one, other, subscriber = started(peers=3)
    subscriber.subscribe(b"*")
    one.say(CHUNK, b"a", b"", b"1")
    assert subscriber.hear()[2] == 6
    other.say(CHUNK, b"b", b"", b"2")
    assert subscriber.hear()[2] != 6
    one.say(CHUNK, b"a", b"", b"3", EOF)
    assert subscriber.hear()[2] == 6


def test_other_protocols_get_what_fits_where_nothing_is_kept(started):
    broker, publisher, subscriber = started(settings=TtpSettings(max_stream_memory=100_000))
    recorder = subscribed_to_all(broker)
    subscriber.subscribe(b"t")
    for size in (50_000, 150_000):
        publisher.say(META, b"t")
        publisher.say(CHUNK, b"t", b"", bytes(size), EOF)
        assert [subscriber.hear()[0] for _ in range(2)] == [META, CHUNK]
    broker.until(lambda: recorder.received == [("t", bytes(50_000))])
    assert recorder.dropped == 1 and broker.call(lambda: broker.front.shared.gathered) == 0


def begun(publisher, subscriber, data):
    """A publisher has sent the half of a payload, and the subscriber has begun to get it."""
    head = HEADER.pack(0x544D5150, 2, PUBLISH, 0, 6, 1, 0, len(data))
    publisher.socket.sendall(head + b"t" + data[: len(data) // 2])
    assert subscriber.exactly(33) == head + b"t"


def until_gathered(broker, nbytes):
    eventually(lambda: broker.hub._uploads.gathered == nbytes)


@pytest.mark.parametrize("most", [MOST_GATHERED, 0])
def test_large_payloads_of_two_publishers_arrive_where_nothing_is_kept(started, monkeypatch, most):
    """While one was on its way to a subscriber, the other was dropped, although there was room for both."""
    monkeypatch.setattr(streaming_publish, "MOST_GATHERED", most)
    broker, first, second, subscriber = started(peers=3)
    subscriber.subscribe(b"t")
    one, other = os.urandom(200_000), os.urandom(300_000)
    begun(first, subscriber, one)
    second.say(PUBLISH, b"t", data=other)
    second.say(HEARTBEAT)
    assert second.hear()[0] == HEARTBEAT
    first.socket.sendall(one[len(one) // 2 :])
    assert subscriber.exactly(len(one)) == one
    if most:
        assert subscriber.hear()[3:] == (b"t", b"", other)
    assert broker.hub.counts["dropped"] == (not most)
    until_gathered(broker, 0)


def test_what_was_gathered_of_a_payload_that_is_broken_off_is_forgotten(started):
    broker, first, second, subscriber = started(peers=3)
    subscriber.subscribe(b"t")
    one = os.urandom(200_000)
    begun(first, subscriber, one)
    second.socket.sendall(HEADER.pack(0x544D5150, 2, PUBLISH, 0, 6, 1, 0, MIB) + b"t" + bytes(100_000))
    until_gathered(broker, MIB)
    second.socket.close()
    until_gathered(broker, 0)
    first.socket.sendall(one[len(one) // 2 :])
    assert subscriber.exactly(len(one)) == one
    first.say(PUBLISH, b"t", data=b"next")
    assert subscriber.hear()[5] == b"next"
