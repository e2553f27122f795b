"""rqueue's front and client over a real hub: who is told what, large contents, slow and broken peers."""

from __future__ import annotations

import mmap
import socket
import struct
import threading

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.single_front import Turns, is_closed, receive, single_front
from tests.broker.vectors import vectors
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.clients.rqueue import Notification, RqueueClient
from transfer.broker.core.message import Front, Message
from transfer.broker.delivery.subscriber import Overflow
from transfer.broker.fronts.publisher_front import LARGE_FROM
from transfer.broker.fronts.pybroker import PyBrokerFront, PyBrokerSettings
from transfer.broker.fronts.rqueue import RqueueFront, RqueueSettings
from transfer.broker.protocols.rqueue import (
    encode_deregister,
    encode_notification,
    encode_publish,
    encode_subscribe,
)
from transfer.transports.errors import Broken


def front(**limits):
    return lambda hub, lines: RqueueFront(hub, lines, RqueueSettings(**limits))


def pybroker(hub, lines):
    return PyBrokerFront(hub, lines, PyBrokerSettings())


def nothing_is_kept(name):
    return False


@pytest.fixture
def broker(tmp_path):
    with single_front(tmp_path / "data", front(), pybroker, durable=nothing_is_kept) as broker:
        yield broker


def client(broker, **options):
    return RqueueClient("127.0.0.1", broker.port, **options)


def subscribed(queue, *topics):
    """Subscribes, and knows that the broker has heard of it: its own message comes back."""
    own = f"own/{id(queue)}"
    for topic in (*topics, own):
        queue.subscribe(topic)
    queue.publish(own, b"")
    assert queue.recv() == (own, b"")
    queue.remove(own)


def test_subscribers_are_told_of_their_topics_and_no_others(broker):
    with client(broker) as first, client(broker) as second, client(broker) as publisher:
        subscribed(first, "news", "sport")
        subscribed(second, "sport")
        for topic in ("news", "new", "newsy", "sport", "größe"):
            publisher.publish(topic, topic.encode())
        assert first.recv() == Notification("news", b"news")
        assert first.recv() == Notification("sport", b"sport")
        assert second.recv() == ("sport", b"sport")
        broker.until(lambda: broker.front.counters["published"] == 7)
    assert broker.front.counters["notified"] == 5


def test_the_notification_is_the_one_that_was_published(broker):
    found = vectors("rqueue")
    with broker.connect() as plain:
        plain.sendall(found["SUBSCRIBE news"] + found["PUBLISH hello to news"])
        wanted = found["NOTIFICATION hello on news"]
        assert receive(plain, len(wanted)) == wanted


def test_subscribing_twice_is_once_and_removing_nothing_is_harmless(broker):
    with client(broker) as queue:
        queue.remove("never")
        subscribed(queue, "news", "news")
        queue.publish("news", b"1")
        queue.remove("news")
        queue.remove("news")
        queue.publish("news", b"2")
        queue.subscribe("end")
        queue.publish("end", b"3")
        assert [queue.recv().content for _ in range(2)] == [b"1", b"3"]


@pytest.mark.parametrize("word", [encode_deregister(), vectors("rqueue")["DEREGISTER, as REMOVE of nothing"]])
def test_deregister_ends_all_subscriptions(broker, word):
    with broker.connect() as plain:
        plain.sendall(b"".join(encode_subscribe(topic) for topic in "abc") + word)
        plain.sendall(b"".join(encode_publish(topic, 1) + b"x" for topic in "abc"))
        plain.sendall(encode_subscribe("b") + encode_publish("b", 1) + b"y")
        assert receive(plain, 8) == encode_notification("b", 1) + b"y"


def test_a_lost_connection_ends_its_subscriptions(broker):
    with client(broker) as queue:
        subscribed(queue, "news")
        assert broker.call(lambda: len(broker.hub.fanout.subscriptions())) == 1
    broker.until(lambda: not broker.hub.fanout.subscriptions())
    assert broker.front.connections == 0


def test_messages_of_other_protocols_are_notifications(tmp_path):
    with single_front(tmp_path, front(), pybroker) as broker:
        with client(broker) as queue, PyBrokerClient("127.0.0.1", broker.ports[1]) as stream:
            subscribed(queue, "news")
            for payload in (b"", b"small", bytes(range(256)) * 100):
                stream.publish("news", payload)
                assert queue.recv() == ("news", payload)
            queue.publish("back", b"and back")
            assert next(stream.follow("back", interval=0.01)) == b"and back"


@pytest.mark.parametrize("size", [LARGE_FROM - 1, LARGE_FROM, 3_000_001, 20 << 20])
def test_a_large_content_comes_as_it_was(broker, size):
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    with client(broker) as first, client(broker) as second, client(broker) as publisher:
        subscribed(first, "large")
        subscribed(second, "large")
        sending = threading.Thread(target=publisher.publish, args=("large", content))
        sending.start()
        assert first.recv().content == content
        assert second.recv().content == content
        sending.join(10)


def test_messages_of_several_threads_of_one_client_stay_whole(broker):
    sizes = (0, 10, 5000, 70_000, 300_000)
    with client(broker) as queue, client(broker) as publisher:
        subscribed(queue, "news")

        def publish(number):
            for size in sizes * 4:
                publisher.publish("news", bytes([number]) * size)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        found = [bytes(queue.recv().content) for _ in range(4 * 4 * len(sizes))]
        for thread in threads:
            thread.join(10)
        for number in range(1, 4):
            mine = [content for content in found if content and content[0] == number]
            assert mine == [bytes([number]) * size for size in sizes * 4 if size]


def test_what_is_offered_within_a_large_content_comes_behind_it(broker):
    with client(broker) as queue, client(broker) as publisher, broker.connect() as plain:
        subscribed(queue, "large", "small")
        plain.sendall(encode_publish("large", 200_000) + b"a" * 100_000)
        broker.until(lambda: broker.front.counters["published_bytes"] == 200_000)
        for number in range(10):
            publisher.publish("small", b"%d" % number)
        broker.until(lambda: broker.front.counters["published"] == 11)
        plain.sendall(b"b" * 100_000)
        assert queue.recv() == ("large", b"a" * 100_000 + b"b" * 100_000)
        assert [queue.recv().content for _ in range(10)] == [b"%d" % number for number in range(10)]


def test_a_large_content_whose_publisher_goes_is_broken_off(broker):
    with client(broker) as queue, client(broker) as other:
        subscribed(queue, "large")
        subscribed(other, "small")
        with broker.connect() as plain:
            plain.sendall(encode_publish("large", 1 << 30) + bytes(100_000))
            broker.until(lambda: broker.front.counters["published_bytes"] == 1 << 30)
        with pytest.raises(Broken):
            queue.recv()
        other.publish("small", b"x")
        assert other.recv() == ("small", b"x")
    assert broker.front.counters["broken_off"] == 1


def test_who_stops_in_the_middle_is_cut_off(broker):
    with broker.connect() as plain, client(broker) as idle:
        subscribed(idle)
        plain.sendall(encode_publish("large", 1 << 20) + b"x")
        broker.until(lambda: broker.front.counters["published_bytes"] == 1 << 20)
        broker.tick(29)
        assert broker.front.connections == 2
        broker.tick(31)
        assert is_closed(plain)
        subscribed(idle)  # it said nothing for as long, but in no middle
    assert broker.front.counters["stalled"] == broker.front.counters["broken_off"] == 1


def silent_subscriber(broker, topic):
    """A connection that subscribes and never reads."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(10)
    plain.connect(("127.0.0.1", broker.port))
    before = broker.call(lambda: len(broker.hub.fanout.subscriptions()))
    plain.sendall(encode_subscribe(topic))
    broker.until(lambda: len(broker.hub.fanout.subscriptions()) > before)
    return plain


#: more than the kernel takes for one connection
MANY, CONTENT = 1000, 20_000


@pytest.mark.parametrize(
    ("overflow", "limit"),
    [
        (Overflow.DROP, 256 << 10),
        (Overflow.SPILL, 256 << 10),
        (Overflow.SPILL, 4 << 20),
        (Overflow.CLOSE, 256 << 10),
    ],
)
def test_who_never_reads_costs_a_bounded_number_of_bytes_and_nobody_else(tmp_path, overflow, limit):
    limits = front(max_pending=limit, overflow=overflow)
    with single_front(tmp_path, limits, durable=lambda name: overflow is Overflow.SPILL) as broker:
        with (
            client(broker) as reader,
            client(broker) as publisher,
            silent_subscriber(broker, "news") as silent,
        ):
            subscribed(reader, "news")
            for number in range(MANY):
                publisher.publish("news", struct.pack(">I", number) * (CONTENT // 4))
                assert reader.recv().content[:4] == struct.pack(">I", number)
            counts = broker.hub.counts
            if overflow is Overflow.CLOSE:
                assert broker.call(lambda: counts["closed_slow"]) == 1
                assert broker.front.connections == 2
                return
            queued = broker.call(lambda: [one.queued for one in broker.hub.fanout.subscriptions()])
            assert limit - 2 * CONTENT < max(queued) <= limit
            dropped = broker.call(lambda: counts["dropped"])
            assert (dropped > 0) == (overflow is Overflow.DROP)
            found = [receive(silent, 10 + CONTENT)[10:14] for _ in range(MANY - dropped)]
            assert found == [struct.pack(">I", number) for number in range(MANY - dropped)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x02\x03",
        encode_notification("news", 1) + b"x",
        b"\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x02\x07\x01",
        b"\x00\x00\x00\x01\x05",
        b"\xff\xff\xff\xff\x01",
        encode_subscribe("abc")[:6] + b"\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        encode_publish("large", 1 << 20),
        b"".join(map(encode_subscribe, "abcde")),
    ],
)
def test_who_breaks_the_protocol_is_cut_off_and_others_are_not(tmp_path, data):
    limits = front(max_payload=1 << 19, max_subscriptions=4)
    with single_front(tmp_path, limits, durable=nothing_is_kept) as broker, client(broker) as other:
        subscribed(other, "news")
        with broker.connect() as plain:
            plain.sendall(encode_publish("news", 2) + b"ok" + data)
            assert is_closed(plain)
        assert other.recv() == ("news", b"ok")  # what was whole before counts
        assert broker.front.counters["refused"] == 1
        broker.until(lambda: broker.front.connections == 1)


def test_a_content_that_32_bits_do_not_hold_is_left_out(broker):
    with client(broker) as queue:
        subscribed(queue, "news")
        (connection,) = broker.call(lambda: list(broker.hub.fanout.subscriptions()))
        message = Message("news", (), Front.TTP)
        assert broker.call(connection.begin, message, 1 << 33)
        broker.call(connection.piece, bytes(1000))
        broker.call(connection.finish)
        with mmap.mmap(-1, 1 << 30) as memory, memoryview(memory) as view:
            broker.call(connection.offer, Message("news", (view,) * 4, Front.TTP))
        queue.publish("news", b"next")
        assert queue.recv() == ("news", b"next")
        assert broker.front.counters["too_large"] == connection.dropped == 2


def test_a_topic_is_a_name_and_never_a_path(tmp_path):
    folder = tmp_path / "inside" / "data"
    folder.parent.mkdir()
    with single_front(folder, front()) as broker, client(broker) as queue:
        for topic in ("../../outside", "/etc/passwd", "a/../../b", "..", "*", ">", "x\n"):
            subscribed(queue, topic)
            queue.publish(topic, b"x")
            assert queue.recv() == (topic, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in folder.parent.iterdir()] == ["data"]


def test_many_topics(tmp_path):
    with (
        single_front(tmp_path, front(), durable=nothing_is_kept, most=30_000) as broker,
        client(broker) as queue,
    ):
        subscribed(queue, *(f"topic/{number}" for number in range(10_000)))
        queue.publish("topic/9999", b"x")
        assert queue.recv() == ("topic/9999", b"x")
        queue.deregister()
        queue.publish("topic/1", b"lost")
        subscribed(queue)
        assert broker.front.counters["notified"] == 3


#: topics and payloads; of a large one, of zeros, the length, as hypothesis does not print what is too long
FRAMES = st.lists(
    st.tuples(
        st.sampled_from(["a", "größe", "x" * 255]),
        st.one_of(st.binary(max_size=30), st.sampled_from([LARGE_FROM - 1, LARGE_FROM, 100_000])),
    ),
    max_size=6,
)


def test_any_split_into_reads_gives_the_same_messages(tmp_path):
    turns = Turns(tmp_path, front())

    @given(FRAMES, st.lists(st.integers(1, 5000), max_size=40), st.booleans())
    @settings(max_examples=40, deadline=None)
    def same(frames, sizes, broken):
        frames = [(topic, bytes(content)) for topic, content in frames]
        stream = b"".join(
            encode_subscribe("nothing") + encode_publish(topic, len(content)) + content
            for topic, content in frames
        )
        pieces = []
        for size in sizes:
            pieces.append(stream[:size])
            stream = stream[size:]
        pieces.append(stream)
        if broken:
            pieces.append(b"\xff" * 5)
        assert turns.received([piece for piece in pieces if piece]) == (frames, not broken)

    try:
        same()
        frames = encode_publish("a", 3) + b"abc" + encode_deregister() + encode_publish("b", 0)
        assert turns.received([bytes([byte]) for byte in frames]) == ([("a", b"abc"), ("b", b"")], True)
    finally:
        turns.close()
