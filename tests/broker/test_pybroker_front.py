"""PyBroker's front and client over a real hub: streams, order, limits, peers that stall or break rules."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.single_front import Turns, is_closed, receive, single_front
from transfer.broker.clients.pybroker import PyBrokerClient
from transfer.broker.fronts.publisher_front import LARGE_FROM
from transfer.broker.fronts.pybroker import PyBrokerFront, PyBrokerSettings
from transfer.broker.protocols.pybroker import encode_fetch, encode_length, encode_publish
from transfer.log import Retention
from transfer.transports import descriptors
from transfer.transports.errors import Again, Broken, UsageError


def front(**limits):
    return lambda hub, lines: PyBrokerFront(hub, lines, PyBrokerSettings(**limits))


@pytest.fixture
def broker(tmp_path):
    with single_front(tmp_path / "data", front()) as broker:
        yield broker


def client(broker, **options):
    return PyBrokerClient("127.0.0.1", broker.port, **options)


def test_what_was_published_is_fetched_from_any_offset(broker):
    with client(broker) as pybroker:
        for payload in (b"one", b"", bytearray(b"two"), memoryview(b"three")):
            pybroker.publish("logs", payload)
        found = b"".join(islice(pybroker.follow("logs", interval=0.01), 1))
        assert found == b"onetwothree"
        for offset in range(len(found) + 1):
            assert pybroker.fetch("logs", offset) == found[offset:]
        assert pybroker.fetch("logs", 1000) == b""
        assert pybroker.fetch("nobody has published this") == b""
        assert pybroker.oldest("logs") == 0
    assert broker.front.counters["published"] == 4
    assert broker.front.counters["published_bytes"] == 11


def test_a_long_stream_comes_in_pieces_of_1_mib(broker):
    payloads = [bytes([number]) * 60_000 for number in range(40)]
    with client(broker) as publisher, client(broker) as reader:
        for payload in payloads:
            publisher.publish("logs", payload)
        pieces, size = [], 0
        for piece in reader.follow("logs", interval=0.01):
            assert len(piece) <= 1 << 20
            pieces.append(piece)
            size += len(piece)
            if size == 40 * 60_000:
                break
        assert b"".join(pieces) == b"".join(payloads)
        assert any(len(piece) == 1 << 20 for piece in pieces) or len(pieces) > 3


def test_many_small_payloads_are_one_answer(broker):
    with client(broker) as pybroker:
        for number in range(500):
            pybroker.publish("logs", b"%03d" % number)
        found = b""
        while len(found) < 1500:
            found += next(pybroker.follow("logs", len(found), interval=0.01))
    assert found == b"".join(b"%03d" % number for number in range(500))


def test_large_payloads_lie_between_small_ones(broker):
    payloads = [b"first", bytes(range(256)) * 20_000, b"second", bytes(LARGE_FROM), b"third"]
    stream = b"".join(payloads)
    with client(broker) as publisher, client(broker) as reader:
        for payload in payloads:
            publisher.publish("logs", payload)
        found = bytearray()
        for piece in reader.follow("logs", interval=0.01):
            found += piece
            if len(found) >= len(stream):
                break
        assert found == stream
        assert reader.fetch("logs", 5_000_000) == stream[5_000_000 : 5_000_000 + (1 << 20)]


def test_a_large_payload_whose_publisher_goes_is_not_kept(broker):
    with client(broker) as pybroker, broker.connect() as plain:
        plain.sendall(encode_publish("logs", 1 << 20) + bytes(100_000))
        broker.until(lambda: broker.front.counters["published_bytes"] == 1 << 20)
        plain.close()
        broker.until(lambda: broker.front.counters["broken_off"] == 1)
        pybroker.publish("logs", b"whole")
        assert next(pybroker.follow("logs", interval=0.01)) == b"whole"


def test_answers_come_in_the_order_of_requests(broker):
    with client(broker) as pybroker, broker.connect() as plain:
        for topic in ("a", "b"):
            pybroker.publish(topic, topic.encode() * 2)
            next(pybroker.follow(topic, interval=0.01))
        plain.sendall(
            encode_fetch("a", 0)
            + encode_publish("c", 1) + b"c"
            + encode_fetch("b", 1) + encode_fetch("c", 9) + encode_fetch("a", 1)
        )  # fmt: skip
        wanted = b"".join(encode_length(len(data)) + data for data in (b"aa", b"b", b"", b"a"))
        assert receive(plain, len(wanted)) == wanted


def test_offsets_stay_when_the_broker_starts_again(tmp_path):
    for turn in range(2):
        with single_front(tmp_path, front()) as broker, client(broker) as pybroker:
            pybroker.publish("logs", b"%d" % turn)
            assert next(pybroker.follow("logs", turn, interval=0.01)) == b"%d" % turn
            assert pybroker.fetch("logs") == b"01"[: turn + 1]


def test_an_offset_that_is_gone_is_told_with_the_oldest(tmp_path):
    keep = Retention(bytes=256 << 10)
    with single_front(tmp_path, front(), retention=keep, segment_bytes=64 << 10) as broker:
        with client(broker) as pybroker:
            for number in range(40):
                pybroker.publish("logs", bytes([number]) * 20_000)
            next(pybroker.follow("logs", 40 * 20_000 - 1, interval=0.01))
            oldest = pybroker.oldest("logs")
            assert 0 < oldest < 40 * 20_000 and oldest % 20_000 == 0
            with pytest.raises(UsageError, match=str(oldest)):
                pybroker.fetch("logs", oldest - 1)
            assert pybroker.fetch("logs", oldest)[0] == oldest // 20_000
            assert pybroker.fetch("logs", 40 * 20_000 + 1) == b""
        assert broker.front.counters["gone"] >= 2
        assert broker.front.connections <= 1


def test_a_topic_is_a_name_and_never_a_path(tmp_path):
    folder = tmp_path / "inside" / "data"
    folder.parent.mkdir()
    with single_front(folder, front()) as broker, client(broker) as pybroker:
        for topic in ("../../outside", "/etc/passwd", "a/../../b", "..", "CON:", "x\n"):
            pybroker.publish(topic, topic.encode())
            assert next(pybroker.follow(topic, interval=0.01)) == topic.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in folder.parent.iterdir()] == ["data"]


def test_a_topic_that_keeps_nothing_has_an_empty_stream(tmp_path):
    with single_front(tmp_path, front(), durable=lambda name: False) as broker, client(broker) as pybroker:
        pybroker.publish("logs", b"gone at once")
        assert pybroker.fetch("logs") == b""
        assert pybroker.fetch("logs", 5) == b""
        assert pybroker.fetch("logs", 500) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x09",
        b"\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x05\x01\x00",
        b"\x00\x00\x00\x09\x02\x01",
        b"\x00\x00\x00\x03\x01\x02\xc3\x28",
        b"GET / HTTP/1.1\r\n\r\n",
        encode_publish("large", 1 << 20),
    ],
)
def test_who_breaks_the_protocol_is_cut_off_and_others_are_not(tmp_path, data):
    with single_front(tmp_path, front(max_payload=1 << 19)) as broker, client(broker) as other:
        with broker.connect() as plain:
            plain.sendall(encode_publish("logs", 2) + b"ok" + data)
            assert is_closed(plain)
        assert next(other.follow("logs", interval=0.01)) == b"ok"  # what was whole before counts
        assert broker.front.counters["refused"] == 1
        broker.until(lambda: broker.front.connections == 1)


def test_one_topic_too_many_is_not_lost_in_silence(tmp_path):
    with single_front(tmp_path, front(), most=2) as broker, client(broker) as pybroker:
        for topic in "abc":
            pybroker.publish(topic, b"x")
        with pytest.raises(Broken):
            pybroker.fetch("a")
        assert broker.front.counters["published"] == 2
        assert broker.front.counters["refused"] == 1


def test_answers_that_nobody_reads_are_bounded(broker):
    with client(broker) as pybroker, broker.connect() as plain:
        for _ in range(18):
            pybroker.publish("logs", bytes(60_000))
        size = 0
        while size < 1 << 20:
            size += len(next(pybroker.follow("logs", size, interval=0.01)))
        before = broker.front.counters["fetched"]
        plain.sendall(encode_fetch("logs", 0) * 50)
        broker.until(lambda: broker.front.counters["fetched"] - before >= 4)
        assert pybroker.fetch("logs", 1 << 20) is not None  # others are served meanwhile
        assert broker.front.counters["fetched"] - before < 40
        answer = encode_length(1 << 20) + bytes(1 << 20)
        for _ in range(50):
            assert receive(plain, len(answer)) == answer


def test_who_never_reads_its_answers_is_cut_off(broker):
    with client(broker) as pybroker, broker.connect() as plain:
        pybroker.publish("logs", bytes(60_000))
        next(pybroker.follow("logs", interval=0.01))
        plain.sendall(encode_fetch("logs", 0) * 1000)
        before = 0
        while before != (before := broker.front.counters["fetched"]) or before < 50:
            broker.tick(0)  # looks, and finds that it stands
        assert broker.front.counters["stalled"] == 0
        for look in range(1, 40):  # the first may still see that something moved
            broker.tick(31 * look)
            if broker.front.counters["stalled"]:
                break
        assert broker.front.counters["stalled"] == 1
        assert pybroker.fetch("logs", 59_999) == b"\0"


@pytest.mark.parametrize(
    "part", [b"\x00", encode_publish("logs", 5) + b"hell", encode_publish("logs", 1 << 20)]
)
def test_who_stops_in_the_middle_is_cut_off(tmp_path, part):
    with single_front(tmp_path, front(), durable=lambda name: False) as broker:
        with broker.connect() as plain, client(broker) as idle:
            idle.publish("other", b"x")
            plain.sendall(encode_fetch("logs", 0) + part)
            assert receive(plain, 4) == bytes(4)
            broker.tick(29)
            assert broker.front.connections == 2
            broker.tick(31)
            assert is_closed(plain)
            assert broker.front.counters["stalled"] == 1
            assert idle.fetch("other") == b""
            large = part.startswith(encode_publish("logs", 1 << 20))
            assert broker.front.counters["broken_off"] == large


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
        frames = [(topic, bytes(payload)) for topic, payload in frames]
        stream = b"".join(
            encode_publish(topic, len(payload)) + payload + encode_fetch("nothing", 0)
            for topic, payload in frames
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
        frame = encode_publish("a", 3) + b"abc" + encode_publish("b", 0)
        whole = [bytes([byte]) for byte in frame]
        assert turns.received(whole) == ([("a", b"abc"), ("b", b"")], True)
    finally:
        turns.close()


def test_many_topics(tmp_path):
    with single_front(tmp_path, front(), durable=lambda name: False, most=30_000) as broker:
        with client(broker) as pybroker:
            for number in range(20_000):
                pybroker.publish(f"topic/{number}", b"x")
            assert pybroker.fetch("topic/0") == b""
        assert broker.front.counters["published"] == 20_000


def test_following_ends_when_nothing_comes(broker):
    with client(broker) as pybroker:
        with pytest.raises(Again, match="logs"):
            next(pybroker.follow("logs", interval=0.01, timeout=0.03))
        pybroker.publish("logs", b"late")
        assert next(pybroker.follow("logs", interval=0.01, timeout=float("inf"))) == b"late"


def test_thousands_of_connections_are_answered(broker):
    descriptors.raise_descriptor_limit()
    with ExitStack() as held:
        connections = [held.enter_context(broker.connect()) for _ in range(2000)]
        for number, connection in enumerate(connections):
            connection.sendall(encode_publish("logs", 4) + b"%04d" % number)
        broker.until(lambda: broker.hub.store.nbytes == 8000)
        broker.until(lambda: broker.hub.stream("logs", 7996, 100))
        for connection in connections:
            connection.sendall(encode_fetch("logs", 7996))
        for connection in connections:
            assert len(receive(connection, 8)) == 8


def test_fetches_of_many_connections_leave_turns_to_others(broker, monkeypatch):
    """Each takes some 20 ms if its messages are small: one large answer in a turn of the loop."""
    payload = bytes(1 << 17)
    turns, fetched, stream = [0], [], broker.hub.stream

    def count():
        turns[0] += 1
        broker._loop.call_soon(count)

    def counted(*arguments):
        fetched.append(turns[0])
        return stream(*arguments)

    monkeypatch.setattr(broker.hub, "stream", counted)
    with client(broker) as publisher:
        publisher.publish("logs", payload)
        while not publisher.fetch("logs"):
            pass
    fetched.clear()
    connections = [broker.connect() for _ in range(5)]
    broker.call(count)
    for connection in connections:
        connection.sendall(encode_fetch("logs", 0) * 4)
    for connection in connections:
        with connection:
            assert receive(connection, 4 * (4 + (1 << 17))) == (encode_length(1 << 17) + payload) * 4
    assert len(fetched) == len(set(fetched)) == 20


def test_an_answer_that_fails_is_its_connections(broker, monkeypatch):
    """Others that wait for their turn are answered."""
    with client(broker) as publisher:
        publisher.publish("logs", bytes(1 << 17))
        while not publisher.fetch("logs"):
            pass
    stream, calls = broker.hub.stream, []

    def fails_once(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("as if")
        return stream(*arguments)

    monkeypatch.setattr(broker.hub, "stream", fails_once)
    with ExitStack() as held:
        connections = [held.enter_context(broker.connect()) for _ in range(6)]
        for connection in connections:
            connection.sendall(encode_fetch("logs", 0))
        answers = [len(receive(connection, (1 << 17) + 4)) for connection in connections]
    assert sorted(answers) == [0, *[(1 << 17) + 4] * 5]
