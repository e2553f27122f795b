"""One port for transfer's sockets, TTP and HTTP, told apart by their first bytes."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest
from hypothesis import given, strategies as st

import transfer
from tests.broker.alone import ended, receive
from tests.broker.running import running
from transfer.broker.engine.first_bytes import Guess, Speech, guess
from transfer.clients.own import BrokerClient
from transfer.clients.ttp import TtpClient
from transfer.protocols.ttp import HEADER_SIZE, Kind, decode_error, decode_header, encode_head
from transports.peer_type import HEADER_BYTES
from transports.wire import HEADER, MAGIC, VERSION, SocketType

#: sockets that a test leaves to its end
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def header(kind: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("kind", list(SocketType))
def test_frames_tell_the_socket_type_of_their_peer(kind):
    assert guess(header(kind)) == Guess(Speech.OWN, kind)
    assert guess(header(kind | 0x80)) == Guess(Speech.OWN, kind)


def test_others_are_told_by_their_mark():
    assert guess(b"TMQP\0\2") == Guess(Speech.TTP)
    assert guess(b"GET / HTTP/1.1\r\n") == Guess(Speech.HTTP)
    assert guess(b"OPTIONS * HTTP/1.1") == Guess(Speech.HTTP)
    assert guess(b"\x16\x03\x01") == Guess(Speech.FOREIGN)
    assert guess(header(77)) == Guess(Speech.FOREIGN)


@given(st.sampled_from([header(7), b"TMQP" + bytes(28), b"DELETE /x HTTP/1.1\r\n\r\n"]), st.data())
def test_a_beginning_says_nothing_or_the_same(whole, data):
    part = whole[: data.draw(st.integers(1, len(whole)))]
    found = guess(part)
    assert found == guess(whole) or (found.speech is None and found.wanted <= len(whole))


@given(st.binary(min_size=1, max_size=HEADER_BYTES))
def test_any_bytes_are_decided_on_by_then(first):
    told = guess(first + bytes(HEADER_BYTES))
    assert told.speech is not None


@pytest.fixture
def broker(tmp_path):
    with running(tmp_path) as broker:
        yield broker


@pytest.fixture
def context():
    with transfer.Context() as context:
        yield context


def test_all_come_to_one_port(broker, context):
    port = broker.ports["ttp"]
    endpoint = f"tcp://127.0.0.1:{port}"
    subscriber = context.socket(transfer.SUB)
    subscriber.subscribe("ten")
    subscriber.connect(endpoint)
    subscriber.wait_for_peers(1, 10)
    with TtpClient("127.0.0.1", port) as ttp, BrokerClient(endpoint) as client:
        ttp.subscribe("tensors")
        consumer = client.consume("tensors", "workers", begin="old")
        request = context.socket(transfer.REQ)
        request.connect(endpoint)
        request.send_multipart([b"tensors", b"by a request"])
        assert json.loads(request.recv())["kept"] is True
        push = context.socket(transfer.PUSH)
        push.connect(endpoint)
        push.send_tensor(np.arange(6.0).reshape(2, 3), topic="tensors")
        assert subscriber.recv_multipart() == [b"tensors", b"by a request"]
        np.testing.assert_array_equal(subscriber.recv_tensor(), np.arange(6.0).reshape(2, 3))
        assert bytes(consumer.recv(10).data) == b"by a request"
        assert bytes(ttp.recv(10).data) == b"by a request"


def test_somebody_else_is_let_go(broker):
    with socket.create_connection(("127.0.0.1", broker.ports["ttp"]), 10) as stranger:
        stranger.sendall(b"\x16\x03\x01\x02\x00")
        with pytest.raises(ConnectionResetError):
            if stranger.recv(10) == b"":
                raise ConnectionResetError


def test_a_beginning_that_comes_byte_by_byte_is_waited_for(broker):
    with socket.create_connection(("127.0.0.1", broker.ports["ttp"]), 10) as slow:
        for byte in b"TMQP":
            slow.sendall(bytes([byte]))
        # TTP's own answer to a version that it does not know
        slow.sendall(b"\xff\xff" + bytes(26))
        assert slow.recv(4) == b"TMQP"


def test_first_bytes_of_no_protocol_are_not_answered_and_later_ones_of_ttp_are(broker):
    heartbeat = encode_head(Kind.HEARTBEAT)
    foreign = b"XXXX" + heartbeat[4:]
    with socket.create_connection(("127.0.0.1", broker.ports["ttp"]), 20) as connection:
        connection.sendall(foreign)
        assert ended(connection)
    assert broker.doors.refused["ttp"]["foreign"] == 1
    with socket.create_connection(("127.0.0.1", broker.ports["ttp"]), 20) as connection:
        connection.sendall(heartbeat + foreign)
        assert receive(connection, len(heartbeat)) == heartbeat
        size = decode_header(receive(connection, HEADER_SIZE)).data_size
        assert decode_error(receive(connection, size))[0] == "magic" and ended(connection)
