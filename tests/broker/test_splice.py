"""Large payloads that pass through a TTP front by pipes, and the same by copies."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading

import pytest

from tests.broker.single_front import PATIENCE
from tests.broker.ttp_peers import MIB, serving, subscribed_to_all
from transfer.broker.fronts.ttp_connection import TtpConnection
from transfer.broker.net import splice
from transfer.broker.protocols.ttp import EOF, WANTED, TtpKind, encode_head
from transfer.transports.connect.pacing import unpace

TOPIC = b"large"


@pytest.fixture(params=["pipes", "copies"])
def way(request, monkeypatch):
    """How it goes; the same must come out."""
    if request.param == "copies":
        monkeypatch.setattr("transfer.broker.net.connection_group.pipes_of", lambda pool: None)
    return request.param


def pipes_of(broker):
    return broker._lines.pipes


def check_pipes(broker, way):
    """All of them are empty and back; some were used, if it goes by pipes."""
    pipes = pipes_of(broker)
    if way == "copies":
        assert pipes is None
        return
    broker.until(lambda: pipes._made == len(pipes._free))
    assert pipes._made > 0


def payload(nbytes, salt=0):
    return random.Random(salt).randbytes(nbytes)


class Sending(threading.Thread):
    """Frames that a publisher sends while others read; `with` waits for its end."""

    def __init__(self, peer, *frames):
        super().__init__()
        self._peer, self._frames = peer, frames

    def run(self):
        for kind, options in self._frames:
            self._peer.send(kind, **options)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.join(PATIENCE)
        assert not self.is_alive(), "the publisher is still held up"


def publish(data, **options):
    return TtpKind.PUBLISH, {"topic": TOPIC, "data": data, **options}


def read_publish(peer):
    kind, _, _, topic, _, data = peer.read()
    assert (kind, topic) == (TtpKind.PUBLISH, TOPIC)
    return data


def read_stream(peer):
    assert peer.read()[0] == TtpKind.META
    data, ended = b"", False
    while not ended:
        kind, flags, _, _, _, piece = peer.read()
        assert kind == TtpKind.CHUNK
        data += piece
        ended = bool(flags & EOF)
    return data


@pytest.mark.parametrize("size", [300_000, MIB, 3 * MIB + 5])
def test_all_subscribers_get_the_very_bytes_and_what_comes_behind(tmp_path, way, size):
    with serving(tmp_path, 4) as (broker, publisher, *subscribers):
        for peer in subscribers:
            peer.subscribe(TOPIC)
        large = [payload(size, salt) for salt in range(3)]
        frames = [frame for data in large for frame in (publish(data), publish(b"small" + data[:8]))]
        with Sending(publisher, *frames):
            for data in large:
                for peer in subscribers:
                    assert read_publish(peer) == data
                    assert read_publish(peer) == b"small" + data[:8]
        check_pipes(broker, way)


def test_a_stream_of_large_chunks_comes_in_chunks(tmp_path, way):
    """Chunks up to 4 MiB go on whole, and copied."""
    data = payload(10 * MIB + 7)
    with serving(tmp_path, 3) as (broker, publisher, one, other):
        one.subscribe(TOPIC)
        other.subscribe(TOPIC)
        meta = b'{"nbytes": %d}' % len(data)
        with Sending(
            publisher,
            (TtpKind.META, {"topic": TOPIC, "meta": meta, "number": 5}),
            (TtpKind.CHUNK, {"data": data[: 5 * MIB], "number": 5}),
            (TtpKind.CHUNK, {"data": data[5 * MIB :], "number": 5, "flags": EOF}),
        ):
            assert read_stream(one) == data
            assert read_stream(other) == data
        check_pipes(broker, way)


@pytest.mark.parametrize("most", [48, 3])
def test_a_slow_subscriber_holds_up_nobody_within_its_limit_and_gets_all_in_order(
    tmp_path, way, most, monkeypatch
):
    """most: with few pipes it is given copies in between."""
    monkeypatch.setattr(splice, "_MOST", most)
    large = [payload(4 * MIB, salt) for salt in range(5)]
    with serving(tmp_path, 4) as (broker, publisher, slow, *quick):
        for peer in (slow, *quick):
            peer.subscribe(TOPIC)
        frames = [frame for data in large for frame in (publish(data), publish(data[:9]))]
        with Sending(publisher, *frames):
            for data in large:
                for peer in quick:
                    assert read_publish(peer) == data
                    assert read_publish(peer) == data[:9]
        assert broker.call(lambda: broker._lines.busy), "something waits for the slow one"
        for data in large:
            assert read_publish(slow) == data
            assert read_publish(slow) == data[:9]
        assert slow.alive()
        check_pipes(broker, way)


def test_a_publisher_waits_for_a_subscriber_beyond_its_limit(tmp_path, way, monkeypatch):
    monkeypatch.setattr(TtpConnection, "limit", MIB)
    data = payload(24 * MIB)
    with serving(tmp_path, 2) as (broker, publisher, slow):
        slow.subscribe(TOPIC)
        (connection,) = [one for one in broker.front._connections if one._subscribes]
        with Sending(publisher, publish(data)):
            broker.until(lambda: connection.queued > MIB)
            broker.until(lambda: any(one.paused for one in broker.front._connections))
            assert broker.call(lambda: connection.queued) <= 3 * MIB
            assert read_publish(slow) == data
        assert publisher.alive()
        check_pipes(broker, way)


def test_a_subscriber_that_goes_in_the_middle_leaves_the_rest_to_others(tmp_path, way):
    data = payload(12 * MIB)
    with serving(tmp_path, 3) as (broker, publisher, goes, stays):
        goes.subscribe(TOPIC)
        stays.subscribe(TOPIC)
        with Sending(publisher, publish(data), publish(b"next")):
            goes.exactly(MIB)
            goes.socket.close()
            assert read_publish(stays) == data
            assert read_publish(stays) == b"next"
        check_pipes(broker, way)


@pytest.mark.parametrize("reads", [True, False])
def test_a_publisher_that_goes_in_the_middle_ends_those_who_wait_for_the_rest(tmp_path, way, reads):
    data = payload(6 * MIB)
    with serving(tmp_path, 3) as (broker, publisher, one, other):
        one.subscribe(TOPIC)
        other.subscribe(b"else")
        publisher.send(TtpKind.PUBLISH, TOPIC, data=b"")
        assert read_publish(one) == b""
        with Sending(publisher, publish(data)):
            if reads:
                assert read_publish(one) == data
        head = encode_head(TtpKind.PUBLISH, TOPIC, size=len(data))
        publisher.socket.sendall(head + data[: 3 * MIB])
        broker.until(lambda: broker._lines.busy or reads)
        publisher.socket.close()
        broker.until(lambda: len(broker.front._connections) == 1)
        assert other.alive()
        check_pipes(broker, way)


def test_nobody_listens_and_it_is_acknowledged_all_the_same(tmp_path, way):
    with serving(tmp_path, 1) as (broker, publisher):
        for number in (1, 2):
            publisher.send(TtpKind.PUBLISH, TOPIC, data=payload(3 * MIB), flags=WANTED, number=number)
            assert publisher.read()[:3] == (TtpKind.ACK, 0, number)
        check_pipes(broker, way)


def test_a_subscriber_of_another_protocol_gets_the_same_bytes(tmp_path, way):
    data = payload(3 * MIB)
    with serving(tmp_path, 2) as (broker, publisher, subscriber):
        recorder = subscribed_to_all(broker)
        subscriber.subscribe(TOPIC)
        with Sending(publisher, publish(data)):
            assert read_publish(subscriber) == data
        broker.until(lambda: recorder.received)
        assert recorder.received == [(TOPIC.decode(), data)]
        assert way == "copies" or not pipes_of(broker)._made, "memory was needed anyway"


def test_a_kept_topic_keeps_the_very_bytes(tmp_path, way):
    data = payload(3 * MIB)
    with serving(tmp_path, 2, durable=True) as (broker, publisher, subscriber):
        subscriber.subscribe(TOPIC)
        with Sending(publisher, publish(data)):
            assert read_publish(subscriber) == data
        broker.until(lambda: broker.hub.stream(TOPIC.decode(), 0, 4 * MIB))
        assert b"".join(broker.hub.stream(TOPIC.decode(), 0, 4 * MIB)) == data
        assert way == "copies" or not pipes_of(broker)._made, "memory was needed anyway"


def test_a_pipe_that_takes_a_part_is_followed_by_a_copy_of_the_rest(tmp_path):
    data = payload(3 * MIB)
    with serving(tmp_path, 4) as (broker, publisher, *subscribers):
        pipes = pipes_of(broker)
        whole = pipes.tee
        pipes.tee = lambda source, target, nbytes, flags: whole(source, target, -(-nbytes // 3), flags)
        for peer in subscribers:
            peer.subscribe(TOPIC)
        with Sending(publisher, publish(data), publish(b"end")):
            for peer in subscribers:
                assert read_publish(peer) == data
                assert read_publish(peer) == b"end"
        check_pipes(broker, "pipes")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_where_the_system_refuses_it_goes_by_copies(tmp_path, monkeypatch, number):
    def refuses(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(splice.os, "splice", refuses)
    data = payload(3 * MIB)
    with serving(tmp_path, 2) as (_, publisher, subscriber):
        subscriber.subscribe(TOPIC)
        with Sending(publisher, publish(data), publish(data[::-1])):
            assert read_publish(subscriber) == data
            assert read_publish(subscriber) == data[::-1]


def test_many_slow_subscribers_take_no_more_pipes_than_there_may_be(tmp_path):
    data = payload(8 * MIB)
    with serving(tmp_path, 13) as (broker, publisher, *subscribers):
        for peer in subscribers:
            peer.subscribe(TOPIC)
        with Sending(publisher, publish(data), publish(b"end")):
            pass
        assert pipes_of(broker)._made <= splice._MOST
        for peer in subscribers:
            assert read_publish(peer) == data
            assert read_publish(peer) == b"end"
        check_pipes(broker, "pipes")


def test_only_what_is_sent_within_this_machine_is_not_paced():
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        pytest.skip("this system has no choice of it")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as connection:
            unpace(connection)
            assert connection.getsockopt(socket.IPPROTO_TCP, option, 16).rstrip(b"\0") == b"reno"
    with socket.socket() as alone:
        before = alone.getsockopt(socket.IPPROTO_TCP, option, 16)
        unpace(alone)
        assert alone.getsockopt(socket.IPPROTO_TCP, option, 16) == before
    one, other = socket.socketpair()
    with one, other:
        unpace(one)
