"""Frames of any shape to abtp's ROUTER: their sender is answered or dropped, and others in the same turn."""

from __future__ import annotations

import json

import pytest
import zmq
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.broker.abtp_alone import plain, running
from transfer.protocols.abtp import CONTROL, Limits, Rejected, read_frames
from transfer.protocols.abtp_words import Code

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
    read_frames([b"peer", b"", *frames], 1, "new", Limits(1 << 20))


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
    answer = read_frames([b"peer", b"", *frames], 1, "new", Limits(1 << 20))
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
