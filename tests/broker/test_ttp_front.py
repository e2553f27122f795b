"""The broker's front for TTP: who receives what, how large things pass, and what bad input costs."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.broker.single_front import PATIENCE, Turns, is_closed
from tests.broker.ttp_peers import MIB, answered_later, serving, subscribed_to_all
from tests.folders import new_folder
from transfer.broker.core.message import Front, Message
from transfer.broker.fronts.ttp import TtpFront
from transfer.broker.protocols.ttp import (
    EOF,
    HEADER_SIZE,
    LZ4,
    MOST_NUMBER,
    WANTED,
    encode_head,
)


def test_a_publish_reaches_subscribers_as_the_very_frame_and_others_as_a_message(tmp_path):
    with serving(tmp_path, 3) as (broker, publisher, exact, wild):
        recorder = subscribed_to_all(broker)
        exact.subscribe(b"models/resnet/grads")
        wild.subscribe(b"models/*/grads").subscribe(b"other").subscribe(b"models/resnet/grads")
        publisher.send(3, b"models/resnet/grads", b'{"dtype":"int8"}', b"123", LZ4 | 0x40, 5)
        publisher.send(3, b"models/vit/grads", b"not json", b"", 0, MOST_NUMBER)
        publisher.send(3, b"models/vit", b"", b"nobody")
        first = (3, LZ4 | 0x40, 5, b"models/resnet/grads", b'{"dtype":"int8"}', b"123")
        assert exact.read() == wild.read() == first
        assert wild.read() == (3, 0, MOST_NUMBER, b"models/vit/grads", b"not json", b"")
        assert publisher.alive() and exact.alive() and wild.alive()
        assert broker.call(lambda: recorder.received[0]) == ("models/resnet/grads", b"123")
        assert broker.front.counters["published"] == 3


@pytest.mark.parametrize("size", [64 << 10, MIB, 3 * MIB + 1])
def test_a_large_publish_passes_through_while_it_comes_and_is_acknowledged_at_its_end(tmp_path, size):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with serving(tmp_path, 3) as (broker, publisher, one, other):
        recorder = subscribed_to_all(broker)
        one.subscribe(b"t"), other.subscribe(b"t")
        publisher.socket.sendall(encode_head(3, b"t", b"m", size, WANTED, 9) + data[:100])
        begun = encode_head(3, b"t", b"m", size, WANTED, 9) + data[:100]
        assert one.exactly(len(begun)) == begun
        publisher.socket.sendall(data[100:])
        assert publisher.read() == (6, 0, 9, b"", b"", b"")
        assert one.exactly(size - 100) == data[100:]
        assert other.read() == (3, WANTED, 9, b"t", b"m", data)
        broker.until(lambda: recorder.received == [("t", data)])


def test_what_is_published_meanwhile_comes_behind_a_large_publish(tmp_path):
    with serving(tmp_path, 3) as (_broker, slow, quick, subscriber):
        subscriber.subscribe(b"t")
        slow.socket.sendall(encode_head(3, b"t", b"", 100_000) + bytes(70_000))
        assert subscriber.exactly(HEADER_SIZE + 1)
        quick.send(3, b"t", b"", b"small")
        assert quick.alive()
        subscriber.send(7, number=8)  # its echo has to wait, too
        slow.socket.sendall(bytes(30_000))
        assert subscriber.exactly(100_000) == bytes(100_000)
        assert subscriber.read() == (3, 0, 0, b"t", b"", b"small")
        assert subscriber.read() == (7, 0, 8, b"", b"", b"")


def test_acknowledgements_of_durable_topics_come_when_it_is_on_the_disk_and_name_the_frame(tmp_path):
    with serving(tmp_path, 1, durable=True) as (broker, publisher):
        for number, size in enumerate([0, 10, 100_000]):
            assert publisher.ask(3, b"t", data=bytes(size), flags=WANTED, number=number)[:3] == (6, 0, number)
            kept = broker.call(lambda: broker.hub.store.read(broker.hub.store.topic("t"), 0))
            assert kept[-1].nbytes == size


def test_a_message_of_another_protocol_comes_as_publish_with_its_headers(tmp_path):
    with serving(tmp_path, 1) as (broker, subscriber):
        subscriber.subscribe(b"t")
        message = Message("t", (b"12", b"3"), Front.ABTP, b"words", {"dtype": "int8", "shape": [3]})
        broker.call(broker.hub.publish, message)
        assert subscriber.read() == (3, 0, 0, b"t", b'{"dtype":"int8","shape":[3]}', b"123")


def test_a_subscription_ends(tmp_path):
    with serving(tmp_path, 1) as (broker, peer):
        peer.subscribe(b"a").subscribe(b"b")
        assert peer.ask(2, b"a", b'{"unsubscribe":true}', flags=WANTED)[0] == 6
        assert peer.ask(2, b"never", b'{"unsubscribe":true}', flags=WANTED)[0] == 6
        peer.send(3, b"a", data=b"1")
        peer.send(3, b"b", data=b"2")
        assert peer.read()[5] == b"2"
        assert broker.call(lambda: len(broker.hub.fanout.subscriptions())) == 1
        peer.socket.close()
        broker.until(lambda: not broker.hub.fanout.subscriptions() and not broker.front.connections)


def test_thousands_of_subscriptions_of_one_connection(tmp_path):
    with serving(tmp_path, 1) as (_broker, peer):
        for number in range(3000):
            peer.send(2, b"topic/%d" % number)
        assert peer.alive()
        for number in (0, 1500, 2999):
            assert peer.ask(3, b"topic/%d" % number)[3] == b"topic/%d" % number


def test_connect_is_answered_and_names_the_client(tmp_path):
    with serving(tmp_path, 1) as (broker, peer):
        kind, _, number, _, meta, _ = peer.ask(1, meta=b'{"client":"trainer"}')
        assert (kind, number) == (6, 77) and b'"idle":60.0' in meta
        assert peer.ask(1, meta=b'{"client":7}')[0] == 6
        assert peer.ask(1, meta=b"\xff", data=b"passed over")[0] == 6
        assert broker.front.connections == 1


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", "magic"),
        (encode_head(3, b"t").replace(b"\0\2\3", b"\0\1\3", 1), "version"),
        (encode_head(0), "control"),
        (encode_head(9), "control"),
        (encode_head(3, b"t" * 256), "topic"),
        (encode_head(3, b"t", b"m" * (64 * 1024 + 1)), "length"),
        (encode_head(3, b"t", b"", 1 << 50), "too_large"),
        (encode_head(5, b"", b"", MOST_NUMBER), "too_large"),
    ],
)
def test_bytes_that_are_no_frames_end_the_connection_with_a_word_and_nobody_elses(tmp_path, data, code):
    with serving(tmp_path, 2) as (broker, peer, other):
        assert other.alive()
        peer.socket.sendall(data)
        assert peer.refused() == (0, code)
        assert is_closed(peer.socket)
        assert other.alive()
        assert broker.front.counters["broken"] == 1


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ((3, b"\xff\xfe", b"", b"data"), "topic"),
        ((3, b"a\0b", b"", b"data"), "usage"),
        ((3, b"", b"", b"data"), "usage"),
        ((3, b"", b"", bytes(100_000)), "usage"),
        ((3, b"\xff", b"", bytes(2 * MIB)), "topic"),
        ((2, b"", b"", b""), "usage"),
        ((2, b"a//*", b"", b"data"), "usage"),
        ((2, b"\xff", b"", b""), "topic"),
    ],
)
def test_frames_that_cannot_be_done_are_answered_and_passed_over(tmp_path, frame, code):
    with serving(tmp_path, 1) as (broker, peer):
        peer.send(*frame, number=5)
        assert peer.refused() == (5, code)
        assert peer.alive()
        assert broker.front.counters["refused"] == 1


def test_truncated_frames_are_nothing(tmp_path):
    whole = encode_head(3, b"topic", b"meta", 10) + bytes(10)
    with serving(tmp_path, 1) as (broker, subscriber):
        subscriber.subscribe(b"topic")
        for size in (1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 6, len(whole) - 1):
            with broker.connect() as connection:
                connection.sendall(whole[:size])
        broker.until(lambda: broker.front.connections == 1)
        assert subscriber.alive()


def test_a_peer_that_does_not_read_its_answers_is_ended(tmp_path):
    with serving(tmp_path, 1) as (broker, peer):
        echoes = encode_head(7) * 30_000
        with pytest.raises((ConnectionError, TimeoutError)):
            for _ in range(200):
                peer.socket.sendall(echoes)
        broker.until(lambda: broker.front.connections == 0)


# -- time ----------------------------------------------------------------------------------------------


def test_idle_connections_are_ended_but_subscribers_only_if_they_miss_heartbeats(tmp_path):
    with serving(tmp_path, 3) as (broker, idle, deaf, lively):
        assert idle.alive()
        deaf.subscribe(b"t"), lively.subscribe(b"t")
        broker.tick(21)
        assert lively.read() == (7, WANTED, 0, b"", b"", b"")
        broker.tick(30)
        broker.tick(59)
        assert deaf.read() == deaf.read() == (7, WANTED, 0, b"", b"", b"")
        assert broker.front.connections == 3
        broker.call(lambda: answered_later(broker, lively, 59))
        broker.tick(61)
        assert idle.refused() == deaf.refused() == (0, "idle")
        assert is_closed(idle.socket) and is_closed(deaf.socket)
        assert broker.front.connections == 1 and broker.front.counters["idle"] == 2


# -- any cut ---------------------------------------------------------------------------------------------

_topics = st.sampled_from([b"a", b"b/c", "ü".encode()])
_numbers = st.integers(1, 3)


@st.composite
def _conversation(draw):
    """(bytes, the messages that they are)"""
    data, received, streams = bytearray(), [], {}
    for _ in range(draw(st.integers(1, 12))):
        topic, number, size = draw(_topics), draw(_numbers), draw(st.sampled_from([0, 1, 50, 65_536, 80_000]))
        payload, choice = bytes([number]) * size, draw(st.integers(0, 3))
        if choice == 0:
            data += encode_head(3, topic, b"m", size, 0, number) + payload
            received.append((topic.decode(), payload))
        elif choice == 1:
            data += encode_head(4, topic, b"", 0, 0, number)
            streams[number] = topic, b""
        elif number in streams:
            size = min(size, 80_000 - len(streams[number][1]))
            payload, last = payload[:size], choice == 3
            data += encode_head(5, b"", b"", size, last * EOF, number) + payload
            streams[number] = streams[number][0], streams[number][1] + payload
            if last:
                topic, payload = streams.pop(number)
                received.append((topic.decode(), payload))
    return bytes(data), received


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(talk=_conversation(), cuts=st.lists(st.floats(0, 1), max_size=8))
def test_frames_mean_the_same_wherever_the_network_cuts_them(talk, cuts):
    data, received = talk
    places = [0, *sorted(int(one * len(data)) for one in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    pieces = [piece[at : at + 60_000] for piece in pieces for at in range(0, len(piece), 60_000)]
    with new_folder() as folder, closing(Turns(folder, lambda hub, lines: TtpFront(hub, lines))) as turns:
        assert turns.received(pieces) == (received, True)


_sizes = st.sampled_from([0, 1, 3, 70_000])


@st.composite
def _nonsense(draw):
    """Frames that need not fit together, with a few bytes changed."""
    data = bytearray()
    for _ in range(draw(st.integers(1, 8))):
        topic = draw(st.sampled_from([b"", b"a", b"a/*", b"\xff", b"a\0"]))
        meta = draw(
            st.sampled_from([b"", b"{}", b'{"nbytes":70001}', b"[", b'{"client":1,"unsubscribe":true}'])
        )
        flags = draw(st.sampled_from([0, EOF, LZ4, WANTED, EOF | WANTED]))
        size = draw(_sizes)
        data += encode_head(draw(st.integers(1, 8)), topic, meta, size, flags, draw(_numbers)) + bytes(size)
    for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[place] = draw(st.integers(0, 255))
    return bytes(data)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=_nonsense())
def test_no_bytes_upset_the_broker(caplog, data):
    pieces = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    with new_folder() as folder, closing(Turns(folder, lambda hub, lines: TtpFront(hub, lines))) as turns:
        turns.received(pieces)
        assert turns.received([encode_head(3, b"t", b"", 5) + b"after"]) == ([("t", b"after")], True)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_descriptor_is_all_that_a_connection_costs_at_its_end(tmp_path):
    with serving(tmp_path, 0) as (broker,):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as connection:
                connection.sendall(
                    encode_head(2, b"t") + encode_head(4, b"t") + encode_head(3, b"t", b"", 70_000)
                )
        # Each of them was heard before it ended.
        broker.until(lambda: broker.front.counters["subscribed"] == 50 and broker.front.connections == 0)
        assert not broker.hub.fanout.subscriptions() and not broker.front.shared.used


def test_dead_connections_cost_no_descriptor(tmp_path):
    """Those that say nothing more, and whose end nobody tells."""
    with serving(tmp_path, 0) as (broker,), ExitStack() as held:

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        before = descriptors()
        for _ in range(50):
            held.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE))
        broker.until(lambda: broker.front.connections == 50)
        assert descriptors() >= before + 100
        broker.tick(10_000)
        broker.until(lambda: broker.front.connections == 0)
        assert descriptors() <= before + 50  # the test's own


def test_what_a_slow_subscriber_has_no_room_for_comes_out_of_the_log_as_it_was(tmp_path):
    with serving(tmp_path, 2, durable=True) as (broker, publisher, subscriber):
        subscriber.subscribe(b"t")
        broker.call(_narrow, broker, subscriber)
        for number in range(600):
            publisher.send(3, b"t", b"meta", b"%d" % number * 5000, 0x40, number)
            if number % 100 == 50:
                publisher.send(4, b"t", b"{}", number=number)
                publisher.send(5, b"", b"cut", b"abc", LZ4, number)
                publisher.send(5, flags=EOF, number=number)
        assert publisher.alive()
        assert broker.call(lambda: broker.hub.counts["spilled"])
        for number in range(600):
            assert subscriber.read() == (3, 0x40, number, b"t", b"meta", b"%d" % number * 5000)
            if number % 100 == 50:
                assert subscriber.read() == (4, 0, number, b"t", b"{}", b"")
                assert subscriber.read() == (5, LZ4, number, b"", b"cut", b"abc")
                assert subscriber.read() == (5, EOF, number, b"", b"", b"")
        assert subscriber.alive()


def _narrow(broker, peer):
    """Little waits for this subscriber, in the broker and in the kernel."""
    name = "{}:{}".format(*peer.socket.getsockname())
    for connection in broker.front._connections:
        if connection.peer == name:
            connection.limit = 50_000
            connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
