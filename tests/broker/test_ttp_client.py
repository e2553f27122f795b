"""The client for TTP, with the broker and with peers that misbehave."""

from __future__ import annotations

import array
import select
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from tests.broker.single_front import single_front
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.fronts.ttp import TtpFront, TtpSettings
from transfer.broker.protocols.ttp import EOF, LZ4, WANTED, TtpKind, encode_error, encode_head
from transfer.transports.errors import (
    Again,
    ArgumentError,
    Broken,
    Closed,
    NotATensor,
    OptionError,
    PeerError,
    ProtocolError,
    UsageError,
)

MIB = 1 << 20


@contextmanager
def clients(folder, count, *, settings=None, **options):
    """A broker of this front alone, and clients of it. settings: of one that keeps its topics."""
    with single_front(
        folder, lambda hub, lines: TtpFront(hub, lines, settings), durable=lambda name: settings is not None
    ) as broker:
        made = [TtpClient("127.0.0.1", broker.port, timeout=10.0, **options) for _ in range(count)]
        try:
            yield broker, *made
        finally:
            for client in made:
                client.close()


@contextmanager
def against(answers, **options):
    """A client whose broker says these bytes, and then nothing; and the broker's end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with TtpClient("127.0.0.1", server.getsockname()[1], timeout=5.0, **options) as client:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answers)
                yield client, connection


def test_five_lines(tmp_path):
    with clients(tmp_path, 1, name="trainer") as (broker, client):
        client.subscribe("models/*/grads")
        client.publish("models/resnet/grads", b"hello", {"step": 3}, wait=True)
        found = client.recv()
        assert (found.topic, found.meta, found.data) == ("models/resnet/grads", {"step": 3}, b"hello")
        assert [one.client for one in broker.front._connections] == ["trainer"]
        client.unsubscribe("models/*/grads")
        client.publish("models/resnet/grads", b"gone", wait=True)
        with pytest.raises(Again):
            client.recv(0)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 5 * MIB + 3])
def test_payloads_of_any_size_arrive_in_memory_of_their_own(tmp_path, size):
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
    with clients(tmp_path, 3) as (_, publisher, one, other):
        one.subscribe("t"), other.subscribe("*")
        publisher.publish("t", data, flags=LZ4)
        for client in (one, other):
            found = client.recv()
            assert found.data == data and found.flags == LZ4
            assert not found.data.readonly


def test_tensors_carry_dtype_and_shape(tmp_path):
    with clients(tmp_path, 1) as (_, client):
        client.subscribe("t")
        for values in (
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.array([True, False]),
            np.array(7, np.uint16),
            np.zeros((0, 4), np.complex128),
            np.arange(3, dtype=np.int64),
        ):
            client.publish_tensor("t", values, {"step": 1}, wait=True)
            found = client.recv()
            assert found.meta == {"dtype": str(values.dtype), "shape": list(values.shape), "step": 1}
            again = np.frombuffer(found.data, found.meta["dtype"]).reshape(found.meta["shape"])
            np.testing.assert_array_equal(again, values)
        client.publish_tensor("t", array.array("d", [1.5]))
        assert client.recv().meta == {"dtype": "float64", "shape": [1]}


@pytest.mark.parametrize(
    "thing", [[1, 2], np.arange(6).reshape(2, 3).T, np.array(["text"]), np.zeros(2, ">f4")]
)
def test_what_is_no_tensor_is_refused(tmp_path, thing):
    with clients(tmp_path, 1) as (_, client):
        with pytest.raises(NotATensor):
            client.publish_tensor("t", thing)


@pytest.mark.parametrize("nbytes", [None, 300_000])
def test_streams_are_put_together(tmp_path, nbytes):
    parts = [b"a" * 100_000, b"", memoryview(b"b" * 200_000)]
    with clients(tmp_path, 2) as (_, publisher, subscriber):
        subscriber.subscribe("t")
        publisher.stream("t", iter(parts), {"step": 1}, nbytes=nbytes, wait=True)
        publisher.stream("t", [], wait=True)
        found = subscriber.recv()
        assert found.data == b"".join(parts) and found.meta["step"] == 1
        assert subscriber.recv().data == b""


def test_a_streams_frames_can_be_had_one_by_one(tmp_path):
    with clients(tmp_path, 1) as (_, client):
        client.subscribe("t")
        client.stream("t", [b"one", b"two"], flags=LZ4, wait=True)
        frames = [client.recv_frame() for _ in range(3)]
        assert [(one.kind, bytes(one.data), one.flags) for one in frames] == [
            (TtpKind.META, b"", WANTED),
            (TtpKind.CHUNK, b"one", LZ4),
            (TtpKind.CHUNK, b"two", LZ4 | EOF),
        ]


def test_a_stream_whose_source_fails_was_never_there(tmp_path):
    def failing():
        yield b"one"
        yield b"two"
        raise KeyError("no more")

    with clients(tmp_path, 1) as (broker, client):
        client.subscribe("t")
        with pytest.raises(KeyError):
            client.stream("t", failing(), wait=True)
        client.publish("t", b"next", wait=True)
        assert client.recv().data == b"next"
        assert not broker.front.shared.used


@pytest.mark.parametrize(
    ("chunks", "nbytes"),
    [([b"one", None], None), ([None], None), ([b"one", 5], None), ([b"one"], 4), ([], 1)],
)
def test_a_stream_of_what_cannot_be_sent_was_never_there(tmp_path, chunks, nbytes):
    """A chunk that was None was passed over, and a stream that said more bytes than it had was published."""
    with clients(tmp_path, 1) as (_, client):
        client.subscribe("t")
        with pytest.raises(ArgumentError):
            client.stream("t", chunks, nbytes=nbytes, wait=True)
        client.publish("t", b"next", wait=True)
        assert client.recv().data == b"next"


def test_what_the_broker_refuses_is_raised_or_kept(tmp_path):
    with clients(tmp_path, 1, settings=TtpSettings(max_data=MIB)) as (_, client):
        with pytest.raises(UsageError, match="empty segment"):
            client.subscribe("a//*")
        with pytest.raises(PeerError, match="too_large"):
            client.stream("t", [bytes(MIB), b"x"], wait=True)
        client.stream("t", [bytes(MIB), b"x"])
        client.publish("t", b"", wait=True)
        assert ["too_large" in str(one) for one in client.complaints] == [True]


def test_mistakes_of_the_caller(tmp_path):
    with clients(tmp_path, 1) as (_, client):
        for wrong in ("", "a\0b", "x" * 256):
            with pytest.raises(UsageError):
                client.publish(wrong, b"")
        with pytest.raises(OptionError):
            client.publish("t", b"", {"a": b"bytes"})
        with pytest.raises(UsageError):
            client.publish("t", "text")
        client.publish("t", b"fine", wait=True)
        client.close()
        client.close()
        for call in (client.recv, client.heartbeat):
            depths = []
            for _ in range(3):  # a program that tries again and again keeps nothing of its earlier tries
                with pytest.raises(Closed) as found:
                    call()
                depths.append(len(found.traceback))
            assert len(set(depths)) == 1, depths


def test_a_client_that_publishes_to_itself_does_not_stand_in_its_own_way(tmp_path):
    with clients(tmp_path, 1) as (_, client):
        client.subscribe("t")
        for number in range(40):
            client.publish("t", bytes([number]) * MIB)
        assert [client.recv().data[0] for _ in range(40)] == list(range(40))


def test_heartbeats_are_sent_while_it_waits_and_answered(tmp_path):
    with clients(tmp_path, 1, heartbeat=0.02) as (broker, client):
        client.subscribe("t")
        with pytest.raises(Again):
            client.recv(0.2)
        assert broker.front.counters["heartbeats"] >= 3


def test_a_brokers_heartbeat_is_answered():
    with against(encode_head(7, flags=WANTED)) as (client, connection):
        with pytest.raises(Again):
            client.recv(0.05)
        assert connection.recv(100) == encode_head(7)


def test_a_client_that_did_not_read_for_long_does_not_take_the_broker_for_dead(tmp_path):
    with clients(tmp_path, 1, heartbeat=0.01) as (broker, client):
        client.subscribe("t")
        with pytest.raises(Again):
            client.recv(0.05)
        client.heartbeat()
        assert select.select([client._connection._socket], [], [], 10)[0]
        client._connection._unanswered = 0.0  # as if it had been long ago that a heartbeat was sent
        client.publish("t", b"still there", wait=True)
        assert client.recv().data == b"still there"
        assert broker.front.connections == 1


def test_a_broker_that_falls_silent_is_noticed():
    with against(encode_head(7), heartbeat=0.03) as (client, _):
        with pytest.raises(Broken, match="silent"):
            client.recv(5)
        with pytest.raises(Broken):
            client.publish("t", b"")


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 2, ProtocolError),
        (encode_head(3, b"t", b"", 1 << 50), ProtocolError),
        (encode_head(3, b"\xff"), ProtocolError),
        (encode_head(5, stream_id=1), Broken),  # of a stream that began before
        (encode_head(3, b"t", b"", 10) + b"short", Broken),
        (encode_error(0, "idle", "nothing came for 60 s"), Broken),
        (b"", Broken),
    ],
)
def test_a_broker_that_misbehaves_or_goes_is_an_error(answers, error):
    with against(answers) as (client, connection):
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(error) as caught:
            client.recv()
        if b"idle" in answers:
            assert "nothing came for 60 s" in str(caught.value.__cause__)


def test_nothing_is_allocated_for_what_is_too_large():
    with against(encode_head(3, b"t", b"", 1001), max_payload=1000) as (client, _):
        with pytest.raises(ProtocolError, match="too_large"):
            client.recv()


def test_waiting_for_a_broker_that_takes_nothing_ends_and_ends_the_connection():
    with against(b"") as (client, _):
        client.timeout = 0.1
        with pytest.raises(Again):
            client.publish("t", bytes(64 * MIB))
        with pytest.raises(Broken, match="half sent"):
            client.publish("t", b"")


def test_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Broken, match=str(port)):
        TtpClient("127.0.0.1", port)


def test_a_broker_that_does_not_know_connect_is_not_waited_for_without_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(Again):
            TtpClient("127.0.0.1", server.getsockname()[1], name="me", timeout=0.05)


def test_a_receiver_wakes_when_another_connection_publishes(tmp_path):
    with clients(tmp_path, 2) as (_, publisher, subscriber):
        subscriber.subscribe("t")
        found = []
        thread = threading.Thread(target=lambda: found.append(subscriber.recv().data))
        thread.start()
        publisher.publish("t", b"now")
        thread.join(10)
        assert found == [b"now"]


def test_importing_loads_no_optional_library():
    optional = "{'numpy', 'lz4', 'asyncio'}"
    code = f"import sys, transfer.broker.clients.ttp; print(sorted({optional} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"
