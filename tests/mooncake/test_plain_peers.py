"""Peers that say no hello and speak frames of version 1, as the seed describes them."""

from __future__ import annotations

import socket
import struct

import numpy as np
import pytest

from transfer.transports.errors import NotSupported

from .conftest import PATIENCE, Inbox

pytestmark = pytest.mark.timeout(30)

MAGIC = 0x5A4D5121
HEADER = struct.Struct("<IIBBQIQI")
REQ, PUB, PUSH = 0, 2, 4
IS_TENSOR, HAS_TOPIC = 1, 2


def frame(kind, data, topic=b"", sequence=1, meta=b"", flags=0):
    flags |= HAS_TOPIC if topic else 0
    return HEADER.pack(MAGIC, 1, kind, flags, sequence, len(topic), len(data), 0) + meta + topic + data


@pytest.fixture
def dial(zi):
    """dial(id) -> a plain TCP connection to the socket's bound endpoint."""
    opened = []

    def new(sock):
        host, port = zi.get_bound_endpoint(sock).removeprefix("tcp://").split(":")
        opened.append(socket.create_connection((host, int(port)), PATIENCE))
        return opened[-1]

    yield new
    for connection in opened:
        connection.close()


@pytest.fixture
def bound(zi):
    def new(kind):
        sock = zi.create_socket(kind)
        zi.bind(sock, "127.0.0.1:0")
        return sock

    return new


def test_a_plain_pusher(zi, bound, dial):
    pull = bound("PULL")
    inbox = Inbox()
    zi.set_pull_callback(pull, inbox)
    zi.set_tensor_receive_callback(pull, inbox)
    connection = dial(pull)
    connection.sendall(frame(PUSH, b"task") + frame(PUSH, b"topical", b"t"))
    assert inbox.get()["data"] == b"task"
    assert inbox.get()["topic"] == "t"
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    meta = struct.pack("<II4qB7x", 2, 2, 2, 3, 0, 0, 0)  # FLOAT32, two dimensions, row-major
    connection.sendall(frame(PUSH, tensor.tobytes(), meta=meta, flags=IS_TENSOR))
    np.testing.assert_array_equal(inbox.get()["tensor"], tensor)


def test_a_plain_publisher(zi, bound, dial):
    sub = bound("SUB")
    inbox = Inbox()
    zi.subscribe(sub, "a")
    zi.set_subscribe_callback(sub, inbox)
    dial(sub).sendall(frame(PUB, b"no", b"b") + frame(PUB, b"yes", b"ab"))
    message = inbox.get()
    assert (message["topic"], message["data"]) == ("ab", b"yes")


def test_a_plain_requester(zi, bound, dial):
    rep = bound("REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"].upper()))
    connection = dial(rep)
    for sequence in (7, 8):
        connection.sendall(frame(REQ, b"shout", sequence=sequence))
        header = HEADER.unpack(connection.recv(HEADER.size, socket.MSG_WAITALL))
        magic, version, _, flags, answered, topic_length, length, _ = header
        assert (magic, version, flags, answered, topic_length) == (MAGIC, 1, 0, sequence, 0)
        assert connection.recv(length, socket.MSG_WAITALL) == b"SHOUT"


@pytest.mark.parametrize(
    "answer",
    [
        lambda zi, rep: zi.reply(rep, np.zeros((1,) * 5)),
        lambda zi, rep: zi.reply(rep, np.zeros(2, complex)),
        lambda zi, rep: zi.reply(rep, {"a": np.zeros(2)}),
        lambda zi, rep: zi.send_multipart(rep, [b"a", b"b"]),
    ],
    ids=["five dimensions", "complex", "dict", "parts"],
)
def test_what_a_plain_peer_does_not_know_is_not_sent(zi, bound, dial, answer):
    rep = bound("REP")
    zi.set_polling_mode(rep, True)
    connection = dial(rep)
    connection.sendall(frame(REQ, b"q", sequence=5))
    assert zi.recv(rep)["data"] == b"q"
    with pytest.raises(NotSupported, match="sent no hello"):
        answer(zi, rep)
    assert zi.reply(rep, np.zeros((2, 2), np.float32)) == 0
    head = HEADER.unpack(connection.recv(HEADER.size, socket.MSG_WAITALL))
    assert head[3] == IS_TENSOR and head[4] == 5
