"""The frames of TTP: the vectors of its document, what is refused, and what is kept of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.vectors import vectors
from transfer.broker.clients.ttp_reader import Assembly, TtpFrame
from transfer.broker.core.message import Front, Message
from transfer.broker.fronts.ttp_frames import Meta, cut, frames_of, publish_head, stream_head
from transfer.broker.protocols.ttp import (
    EOF,
    HEADER,
    HEADER_SIZE,
    LZ4,
    MAGIC,
    MOST_NUMBER,
    WANTED,
    Header,
    TtpKind,
    TtpLimits,
    decode_error,
    decode_header,
    decode_meta,
    decode_topic,
    encode_error,
    encode_head,
    encode_meta,
)
from transfer.broker.storage.stored_message import message_of, record_of
from transfer.log.message import LogMessage as Logged
from transfer.transports.errors import OptionError, ProtocolError

#: (type, flags, stream id, topic, metadata, data)
VECTORS = {
    "CONNECT of a client that is called trainer": (1, 0, 1, b"", b'{"client":"trainer"}', b""),
    "SUBSCRIBE to models/*/grads, an ACK is wanted": (2, WANTED, 2, b"models/*/grads", b"", b""),
    "SUBSCRIBE that ends that subscription": (2, 0, 3, b"models/*/grads", b'{"unsubscribe":true}', b""),
    "PUBLISH of the bytes 01 02 03 to a/b with metadata": (3, 0, 4, b"a/b", b'{"dtype":"uint8"}', b"\1\2\3"),
    "PUBLISH of LZ4 data, flags passed through": (3, LZ4, 5, b"t", b"", b"\xaa\xbb"),
    "META that opens stream 6 of topic t": (4, 0, 6, b"t", b"", b""),
    "META of a stream of 65536 bytes": (4, 0, 7, b"t", b'{"nbytes":65536}', b""),
    "CHUNK of stream 6": (5, 0, 6, b"", b"", b"ab"),
    "CHUNK that ends stream 6": (5, EOF, 6, b"", b"", b"c"),
    "ACK of frame 4": (6, 0, 4, b"", b"", b""),
    "HEARTBEAT of a client, and the echo": (7, 0, 0, b"", b"", b""),
    "HEARTBEAT of the broker that wants an answer": (7, WANTED, 0, b"", b"", b""),
    "ERROR about frame 9": (8, 0, 9, b"", b"", b'{"code":"topic","message":"no"}'),
}

small = st.binary(max_size=40)
numbers = st.integers(0, MOST_NUMBER)


def taken_apart(data):
    """All frames that stand in these bytes, as VECTORS has them."""
    found, at = [], 0
    while at < len(data):
        header = decode_header(data, at)
        topic_at = at + HEADER_SIZE
        meta_at, data_at = topic_at + header.topic_size, at + header.data_at
        at = data_at + header.data_size
        parts = data[topic_at:meta_at], data[meta_at:data_at], data[data_at:at]
        found.append((header.kind, header.flags, header.stream_id, *parts))
    return found


def test_the_documents_vectors_are_what_the_codec_writes_and_reads():
    found = vectors("ttp")
    assert found.keys() == VECTORS.keys()
    for name, (kind, flags, number, topic, meta, data) in VECTORS.items():
        assert encode_head(kind, topic, meta, len(data), flags, number) + data == found[name]
        assert taken_apart(found[name]) == [VECTORS[name]]


def test_errors_are_read_as_they_were_written():
    frame = encode_error(9, "topic", "nö")
    assert decode_error(frame[HEADER_SIZE:]) == ("topic", "nö")
    assert decode_error(b"\xff plain") == ("", "\ufffd plain")
    assert decode_error(b'{"code":1}') == ("", '{"code":1}')


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(TtpKind), st.integers(0, 255), numbers, small, small, st.integers(0, 1 << 36))
def test_headers_are_read_as_they_were_written(kind, flags, number, topic, meta, size):
    data = b"??" + encode_head(kind, topic, meta, size, flags, number)
    header = decode_header(data, 2)
    assert header == Header(kind, flags, number, len(topic), len(meta), size)
    assert 2 + header.data_at == len(data)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ((MAGIC + 1, 2, 3, 0, 0, 1, 0, 0), "magic"),
        ((MAGIC, 1, 3, 0, 0, 1, 0, 0), "version"),
        ((MAGIC, 2, 0, 0, 0, 1, 0, 0), "control"),
        ((MAGIC, 2, 9, 0, 0, 1, 0, 0), "control"),
        ((MAGIC, 2, 3, 0, 0, 256, 0, 0), "topic"),
        ((MAGIC, 2, 3, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0), "topic"),
        ((MAGIC, 2, 3, 0, 0, 1, 101, 0), "length"),
        ((MAGIC, 2, 3, 0, 0, 1, 0, 1 << 50), "too_large"),
        ((MAGIC, 2, 5, 0, 0, 1, 0, MOST_NUMBER), "too_large"),
    ],
)
def test_headers_that_cannot_be_are_refused_by_a_word(fields, word):
    with pytest.raises(ProtocolError) as caught:
        decode_header(HEADER.pack(*fields), 0, TtpLimits(meta=100))
    assert caught.value.reason == word


def test_topics_that_are_no_text_are_refused():
    assert decode_topic("grün".encode()) == "grün"
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_topic(b"\xff\xfe")


@pytest.mark.parametrize(
    "meta",
    [b"{", b"\xff", b"[1]", b"7", b"[" * 60_000, b'{"a":"\\ud800"}', b'{"n":' + b"9" * 5000 + b"}",
     b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":' * 501 + b"1" + b"}" * 501],
)  # fmt: skip
def test_metadata_that_are_no_json_object_are_nobodys_mistake(meta):
    assert decode_meta(meta) is None
    assert dict(Meta(meta)) == {}


def test_metadata_are_headers_unless_known_ones_are_of_a_wrong_type():
    meta = encode_meta({"dtype": "float32", "shape": [2, -1], "priority": True, "ttl_ms": 5, "own": None})
    assert dict(Meta(meta)) == {"dtype": "float32", "ttl_ms": 5, "own": None}
    assert not Meta(b"")
    assert Meta(b'{"shape":[2,3]}')["shape"] == [2, 3]
    assert decode_meta(b'{"a":"\\ud83d\\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    "value", [b"bytes", float("nan"), float("inf"), "\ud800", pytest.param(10**5000, id="digits")]
)
def test_metadata_that_json_cannot_say_are_the_callers_mistake(value):
    with pytest.raises(OptionError):
        encode_meta({"a": value})


def test_a_publish_is_sent_on_with_its_own_words():
    message = Message("a/b", (b"12", b"345"), Front.TTP, publish_head(LZ4, 7, b"not json"))
    assert taken_apart(b"".join(frames_of(message))) == [(3, LZ4, 7, b"a/b", b"not json", b"12345")]


def test_a_message_of_another_protocol_has_its_headers_as_metadata():
    headers = {"dtype": "int8", "raw": b"\xff"}
    message = Message("ü", (b"12",), Front.PYBROKER, b"its own words", headers)
    assert taken_apart(b"".join(frames_of(message))) == [(3, 0, 0, "ü".encode(), b'{"dtype":"int8"}', b"12")]


chunks = st.lists(st.tuples(st.integers(0, 255), small, small), max_size=6)


def stored_and_read(message):
    """The message as it comes out of the log."""
    body = memoryview(record_of(message, 0, blob=False))
    return message_of(message.topic, Logged(0, 0, body, None))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 254), numbers, small, chunks)
def test_a_streams_frames_are_sent_on_as_they_came_out_of_the_log_too(flags, number, meta, parts):
    flags &= ~EOF
    cuts = b"".join(cut(one, len(data), text) for one, text, data in parts)
    payload = memoryview(b"".join(data for _, _, data in parts))
    message = Message("t", (payload,), Front.TTP, stream_head(flags, number, meta, cuts))
    wanted = [(4, flags, number, b"t", meta, b"")]
    wanted += [(5, one, number, b"", text, data) for one, text, data in parts] or [
        (5, EOF, number, b"", b"", b"")
    ]
    assert taken_apart(b"".join(frames_of(message))) == wanted
    assert taken_apart(b"".join(frames_of(stored_and_read(message)))) == wanted


def test_an_empty_stream_is_one_frame():
    message = Message("t", (b"",), Front.TTP, stream_head(EOF, 3, b""))
    assert taken_apart(b"".join(frames_of(message))) == [(4, EOF, 3, b"t", b"", b"")]


def frame(kind, number, data=b"", flags=0, meta=b""):
    return TtpFrame(kind, "t", meta, memoryview(data), flags, number)


def test_interleaved_streams_are_put_together_each_by_its_id():
    assembly = Assembly(100)
    steps = [
        frame(TtpKind.META, 1, meta=b'{"a":1}'),
        frame(TtpKind.META, 2),
        frame(TtpKind.CHUNK, 1, b"one"),
        frame(TtpKind.CHUNK, 2, b"two"),
        frame(TtpKind.PUBLISH, 1, b"whole", meta=b"?"),
        frame(TtpKind.CHUNK, 1, b"!", EOF | LZ4),
        frame(TtpKind.CHUNK, 2, b"", EOF),
        frame(TtpKind.META, 3, flags=EOF),
    ]
    found = [assembly.add(step) for step in steps]
    told = [(one.stream_id, bytes(one.data), one.meta, one.flags) for one in found if one is not None]
    assert told == [
        (1, b"whole", {"": "?"}, 0),
        (1, b"one!", {"a": 1}, EOF | LZ4),
        (2, b"two", {}, EOF),
        (3, b"", {}, EOF),
    ]


def test_a_receiver_leaves_out_half_streams_and_refuses_those_that_are_too_large():
    assembly = Assembly(10)
    assert assembly.add(frame(TtpKind.CHUNK, 1, b"x")) is None
    assert assembly.add(frame(TtpKind.CHUNK, 1, b"x", EOF)) is None
    assembly.add(frame(TtpKind.META, 1, b"12345678"))
    assembly.add(frame(TtpKind.ERROR, 1, b'{"code":"broken_off","message":""}'))
    assert assembly.add(frame(TtpKind.CHUNK, 1, b"x", EOF)) is None
    assembly.add(frame(TtpKind.META, 1))
    assembly.add(frame(TtpKind.CHUNK, 1, b"123456"))
    with pytest.raises(ProtocolError, match="more than 10"):
        assembly.add(frame(TtpKind.CHUNK, 1, b"78901"))
