"""MessageCodec: what a program says and hears that speaks the bytes of messages by itself."""

from __future__ import annotations

import contextlib
import socket
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

import transfer
from transfer import MessageCodec, ZmqSocketType
from transfer.transports.errors import ArgumentError, NotATensor, OptionError, ProtocolError

from .conftest import PATIENCE, Inbox

pytestmark = pytest.mark.timeout(60)

KINDS = st.sampled_from(list(ZmqSocketType))
TOPICS = st.none() | st.text(max_size=40).filter(lambda text: text.isprintable())
NUMBERS = st.integers(0, 2**64 - 1)
ARRAYS = [
    np.float32(7.5),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
    np.zeros((0, 3), dtype=np.uint8),
    np.arange(5, dtype=np.complex64),
    np.arange(64.0).reshape(2, 2, 2, 2, 2, 2),
    np.array([1, 0, 1], dtype=bool),
    np.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8")]),
]


def test_the_bytes_of_the_document():
    """34 bytes, topic, data; for a tensor 48 more: §4.1 and §4.2."""
    plain = MessageCodec.encode_data_message("PUB", b"data", "t", 7)
    assert plain == struct.pack("<IIBBQIQI", 0x5A4D5121, 1, 2, 2, 7, 1, 4, 0) + b"t" + b"data"
    tensor = MessageCodec.encode_tensor_message(ZmqSocketType.PUSH, ARRAYS[1])
    header = struct.pack("<IIBBQIQI", 0x5A4D5121, 1, 4, 1, 0, 0, 24, 0)
    assert tensor == header + struct.pack("<II4qB7x", 2, 2, 2, 3, 0, 0, 0) + ARRAYS[1].tobytes()
    assert len(tensor) == 82 + 24


@given(KINDS, st.binary(max_size=200), TOPICS, NUMBERS, st.booleans(), st.binary(max_size=20))
def test_what_was_encoded_is_decoded(kind, data, topic, number, checksum, behind):
    message = MessageCodec.encode_data_message(kind, data, topic, number, checksum=checksum)
    got = MessageCodec.decode_message(message + behind)
    assert (bytes(got.data), got.topic, got.nbytes) == (data, topic or "", len(message))
    header = MessageCodec.decode_header(message)
    assert header == got.header
    assert (header.socket_type, header.sequence_id, header.data_length) == (kind, number, len(data))
    assert (header.is_tensor, header.has_topic) == (False, topic is not None)
    assert header.has_checksum == checksum


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.char}{array.shape}")
def test_tensors(array, checksum):
    message = MessageCodec.encode_tensor_message("REP", array, "layer", 9, checksum=checksum)
    got = MessageCodec.decode_tensor_message(memoryview(message))
    assert got.tensor.dtype == np.asarray(array).dtype
    np.testing.assert_array_equal(got.tensor, array)
    assert (got.topic, got.header.sequence_id, got.nbytes) == ("layer", 9, len(message))
    assert got.tensor.flags.writeable
    assert len(MessageCodec.decode_message(message).data) == np.asarray(array).nbytes


@pytest.mark.parametrize("array", ARRAYS[:6])
def test_each_byte_that_is_missing_is_waited_for(array):
    messages = [
        MessageCodec.encode_tensor_message("PUSH", array, "topic"),
        MessageCodec.encode_data_message("PUSH", b"data", "topic", checksum=True),
    ]
    for message in messages:
        for length in range(len(message)):
            assert MessageCodec.decode_message(message[:length]) is None
            assert MessageCodec.decode_tensor_message(message[:length]) is None
        assert MessageCodec.decode_header(message[:33]) is None
        assert MessageCodec.decode_header(message[:34]) is not None


@given(st.binary(max_size=120), st.integers(0, 81), st.integers(0, 255))
def test_damaged_bytes_are_refused_or_read(data, at, value):
    """Only ProtocolError and NotATensor are raised, and what is read lies within the bytes given."""
    for message in (
        bytearray(MessageCodec.encode_tensor_message("PUSH", ARRAYS[1])),
        bytearray(MessageCodec.encode_data_message("PUSH", bytes(60), checksum=True)),
        bytearray(data.ljust(82, b"\0")),
    ):
        message[at] = value
        for decode in (MessageCodec.decode_message, MessageCodec.decode_tensor_message):
            with contextlib.suppress(ProtocolError, NotATensor):
                got = decode(message)
                assert got is None or 34 + got.header.data_length <= got.nbytes <= len(message)


def test_a_buffer_in_another_order_is_sent_as_it_lies():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    got = MessageCodec.decode_message(MessageCodec.encode_data_message("PUSH", array))
    assert bytes(got.data) == bytes(range(6))


def test_a_wrong_checksum_is_refused():
    message = bytearray(MessageCodec.encode_data_message("PUSH", b"data", checksum=True))
    message[-1] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        MessageCodec.decode_message(message)


@pytest.mark.parametrize("flags", [8, 16, 128, 64])
def test_what_only_sockets_read_is_refused(flags):
    message = bytearray(MessageCodec.encode_data_message("PUSH", b"data"))
    message[9] |= flags
    with pytest.raises(ProtocolError, match="control, one part of several, or compressed"):
        MessageCodec.decode_message(message)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (OptionError, lambda: MessageCodec.encode_data_message("PUSHY", b"")),
        (OptionError, lambda: MessageCodec.encode_data_message(7, b"")),
        (ArgumentError, lambda: MessageCodec.encode_data_message("PUSH", 5)),
        (ArgumentError, lambda: MessageCodec.encode_data_message("PUSH", b"", "t" * 70_000)),
        (ArgumentError, lambda: MessageCodec.encode_data_message("PUSH", b"", 3)),
        (ArgumentError, lambda: MessageCodec.encode_data_message("PUSH", b"", None, -1)),
        (ArgumentError, lambda: MessageCodec.encode_data_message("PUSH", b"", None, 2**64)),
        (NotATensor, lambda: MessageCodec.encode_tensor_message("PUSH", "text")),
        (ArgumentError, lambda: MessageCodec.decode_header("text")),
        (ArgumentError, lambda: MessageCodec.decode_message(None)),
        (ArgumentError, lambda: MessageCodec.decode_message(np.zeros(4, dtype="M8[s]"))),
        (
            NotATensor,
            lambda: MessageCodec.decode_tensor_message(bytes(MessageCodec.encode_data_message(0, b""))),
        ),
    ],
)
def test_mistakes(error, call):
    with pytest.raises(error):
        call()


def dial(endpoint):
    host, port = endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def hear(connection):
    """One message, read as a program would that has a connection and this codec."""
    data = b""
    while (got := MessageCodec.decode_message(data)) is None:
        more = connection.recv(65536)
        assert more, "the peer ended the connection"
        data += more
    return got


def test_a_program_of_its_own_talks_to_sockets(zi):
    pull, rep = zi.socket("PULL"), zi.socket("REP")
    inbox = Inbox()
    pull.set_receive_callback(inbox)
    rep.set_receive_callback(lambda message: rep.reply(message["data"].upper()))
    for one in (pull, rep):
        one.bind("127.0.0.1:0")
    with dial(pull.get_bound_endpoint()) as connection:
        connection.sendall(MessageCodec.encode_data_message("PUSH", b"task", "topic"))
        connection.sendall(MessageCodec.encode_tensor_message("PUSH", ARRAYS[1]))
        got = inbox.get()
        assert (got["data"], got["topic"]) == (b"task", "topic")
        np.testing.assert_array_equal(inbox.get()["tensor"], ARRAYS[1])
    with dial(rep.get_bound_endpoint()) as connection:
        for number in (7, 8):
            connection.sendall(MessageCodec.encode_data_message("REQ", b"ask", sequence_id=number))
            got = hear(connection)
            assert (bytes(got.data), got.header.sequence_id) == (b"ASK", number)
            assert got.header.socket_type is ZmqSocketType.REP


def test_it_stands_beside_the_interface():
    assert transfer.MessageCodec is MessageCodec
