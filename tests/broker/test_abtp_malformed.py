"""Frames of any shape to abtp's ROUTER: their sender is answered or dropped, and others in the same turn."""

from __future__ import annotations

import json
import math

import lz4.block
import lz4.frame
import pytest
import zmq
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.broker.abtp_front import plain, pub, router, running
from transfer.broker.clients.abtp import AbtpConsumer, AbtpProducer, AbtpSubscriber
from transfer.broker.protocols.abtp import CONTROL, AbtpLimits, Rejected, read_frames
from transfer.broker.protocols.abtp_delivered import read_delivered
from transfer.broker.protocols.abtp_envelope import write_envelope
from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import UsageError

ENVELOPE = {
    "spec_version": "abtp/1",
    "message_id": "m",
    "producer_id": "p",
    "topic": "t",
    "timestamp_unix_ms": 1,
    "payload": 1,
    "headers": {"priority": "high", "tenant_id": "a", "ttl_ms": 1, "codec": "json"},
}
REGISTER = {
    "type": "consumer.register",
    "consumer_id": "c",
    "subscriptions": ["t"],
    "capabilities": {"supports_ack": True, "supports_codec": ["json"]},
}
CONTROLS = [
    REGISTER,
    {"type": "consumer.heartbeat", "consumer_id": "c", "session_id": "s"},
    {"type": "ack", "consumer_id": "c", "message_id": "m", "delivery_id": "d"},
    {"type": "nack", "consumer_id": "c", "message_id": "m", "reason": "r", "status": "terminal_error"},
]
TEXT = st.text(st.characters())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw, sounds):
    sound = dict(draw(st.sampled_from(sounds)))
    name = draw(st.sampled_from(sorted(sound)))
    if isinstance(sound[name], dict) and draw(st.booleans()):
        sound[name] = {**sound[name], draw(st.sampled_from(sorted(sound[name]))): draw(VALUES)}
    else:
        sound[name] = draw(VALUES)
    data = json.dumps(sound).encode()
    cut = draw(st.integers(0, len(data)))
    # no UTF-8, within a string or elsewhere
    return draw(st.sampled_from([data, data[:cut] + b"\xff" + data[cut:]]))


FRAMES = st.one_of(
    changed([ENVELOPE]).map(lambda data: [b"t", data]),
    st.tuples(changed([ENVELOPE["headers"]]), changed([ENVELOPE])).map(
        lambda both: [b"abtp/1", b"\x01", b"t", *both]
    ),
    changed(CONTROLS).map(lambda data: [CONTROL, data]),
    st.lists(st.binary(max_size=20), max_size=6),
)
FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@FUZZ
@given(FRAMES)
def test_reading_never_raises(frames):
    read_frames([b"peer", b"", *frames], 1, "new", AbtpLimits(1 << 20))


@pytest.mark.parametrize(
    "frames",
    [
        [b"t", b'{"message_id":"\xff"}'],
        [b"abtp/1", b"\x01", b"t", b'{"message_id":"\xff"}', b"1"],
        [b"abtp/1", b"\x01", b"t", b'{"x":"\xff"}', b"1"],
        [b"abtp/1", b"\x01", b"t", b"", b'{"spec_version":"abtp/1","message_id":"\xff"}'],
    ],
)
def test_text_that_is_no_utf_8(frames):
    answer = read_frames([b"peer", b"", *frames], 1, "new", AbtpLimits(1 << 20))
    if len(frames) == 5:
        assert isinstance(answer, Rejected)
        assert answer.code == Code.MALFORMED_ENVELOPE


def test_others_are_heard_in_the_same_turn(tmp_path):
    """No turn ends early: it would be a second until the next one."""
    with running(tmp_path) as broker, plain(broker) as connect:
        bad, good = connect(zmq.DEALER), connect(zmq.DEALER)

        @FUZZ
        @given(FRAMES)
        def check(frames):
            bad.send_multipart([b"", *frames])
            good.send_multipart([b"", b"t", b'{"x":1}'])
            (_, _, answer) = good.recv_multipart()
            assert json.loads(answer)["type"] == "accepted"

        broker.front.tick = lambda now: None
        check()
        assert not broker.front.counters["failed"]


def test_what_nobody_expects_is_that_peer_s_error(tmp_path, monkeypatch):
    with running(tmp_path) as broker, plain(broker) as connect:
        real = broker.front._publish

        def fails(peer, envelope, answer):
            if envelope.topic == "bad":
                raise KeyError("nobody thought of it")
            real(peer, envelope, answer)

        monkeypatch.setattr(broker.front, "_publish", fails)
        monkeypatch.setattr(broker.front, "tick", lambda now: None)
        bad, good = connect(zmq.DEALER), connect(zmq.DEALER)
        bad.send_multipart([b"", b"bad", b"1"])
        good.send_multipart([b"", b"t", b"1"])
        assert json.loads(good.recv_multipart()[-1])["type"] == "accepted"
        answer = json.loads(bad.recv_multipart()[-1])
        assert (answer["type"], answer["code"]) == ("error", Code.UNAVAILABLE)
        assert broker.front.counters["failed"] == 1


#: well-formed JSON that decoders cannot read
UNREADABLE = {
    "infinite": b"1e999999",
    "negative": b"[-1E+400]",
    "long float": b"1" * 400 + b".5",
    "long with exponent": b"1" * 250 + b"e99",
    "leading zeros": b"1e0000400 ",
    "digits": b'{"n":' + b"1" * 5000 + b"}",
    "deep": b'{"a":' * 501 + b"1" + b"}" * 501,
    "deeper than the stack": b"[" * 100_000 + b"]" * 100_000,
    "deep behind much": b"[" + b"[],{}," * 1000 + b"[" * 500 + b"]" * 501,
}
READABLE = {
    "exponent": b"[1e308,1e-999999]",
    "digits": b"1" * 4300,
    "words": b'["1e999","e100,' + b"1" * 5000 + b'","\\"[", "a1e500"]',
    "deep": b"[" * 500 + b'"]"' + b"]" * 500,
    "brackets in text": b'["' + b"[" * 1000 + b'","\\"' + b"{" * 1000 + b'"]',
    "many": b"[" + b",".join([b'{"a":[]}'] * 1000) + b"]",
}


def frames_with(data, shape):
    """Bare or within an envelope, from an old or a new producer, compressed or in the headers."""
    whole = json.dumps({**ENVELOPE, "payload": "HERE"}).encode()
    return {
        "old": [b"t", data],
        "old block": [b"t", lz4.block.compress(data, store_size=False)],
        "old whole": [b"t", whole.replace(b'"HERE"', data)],
        "new": [b"abtp/1", b"\x01", b"t", b"", data],
        "new lz4": [b"abtp/1", b"\x01", b"t", b'{"compression":"lz4"}', lz4.frame.compress(data)],
        "headers": [b"abtp/1", b"\x01", b"t", b'{"x":%s}' % data, b"1"],
        "own headers": [b"t", whole.replace(b'"high"', data)],
        "field": [b"t", whole.replace(b'"p"', data)],
    }[shape]


SHAPES = ["old", "old block", "old whole", "new", "new lz4", "headers", "own headers", "field"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", UNREADABLE)
def test_json_that_readers_cannot_decode_is_refused(case, shape):
    answer = read_frames([b"peer", b"", *frames_with(UNREADABLE[case], shape)], 1, "new", AbtpLimits(1 << 20))
    assert isinstance(answer, Rejected)
    assert answer.code == Code.MALFORMED_ENVELOPE


@pytest.mark.parametrize("shape", ["old", "old block", "new", "new lz4"])
@pytest.mark.parametrize("case", READABLE)
def test_json_that_only_looks_unreadable_is_taken(case, shape):
    answer = read_frames([b"peer", b"", *frames_with(READABLE[case], shape)], 1, "new", AbtpLimits(1 << 20))
    assert answer.envelope.payload == READABLE[case]
    read_delivered(write_envelope(answer.envelope.head, answer.envelope.payload, "json"), 1 << 20)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


IMPOSSIBLE = {
    "nan": math.nan,
    "infinite": [-math.inf],
    "digits": 10**5000,
    "deep": nested(501),
    "deeper": nested(5000),
    "surrogate": "\ud800",
    "key": {"\udc00": 1},
    "object": object(),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_producer_hears_at_once_that_json_cannot_hold_it(tmp_path, case):
    with running(tmp_path) as broker, AbtpProducer(router(broker)) as producer:
        with pytest.raises(UsageError, match="the payload"):
            producer.publish("t", IMPOSSIBLE[case])
        with pytest.raises(UsageError, match="the headers"):
            producer.publish("t", None, headers={"x": IMPOSSIBLE[case]})
        producer.publish("t", {"null": None, "large": 10**300, "text": "1e999"})
        producer.confirm()
        assert broker.front.counters["refused"] == 0


def test_names_that_are_no_text(tmp_path):
    with running(tmp_path) as broker:
        with AbtpProducer(router(broker)) as producer:
            with pytest.raises(UsageError):
                producer.publish("\ud800", 1)
            with pytest.raises(UsageError):
                producer.publish("t", 1, message_id="\ud800")
        with pytest.raises(UsageError):
            AbtpConsumer("\ud800", endpoint=router(broker))
        with AbtpSubscriber((), pub(broker)) as subscriber, pytest.raises(UsageError):
            subscriber.subscribe("\ud800")
