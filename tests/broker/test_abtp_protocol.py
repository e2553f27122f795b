"""abtp/1's codec: every shape of frames, control, the document's vectors, and bytes that are none of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.abtp_frames import ENVELOPE, NOW, PEER, TOPIC, code, envelope, new, published, read
from tests.broker.vectors import frames
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Deregister,
    Deregistered,
    Fault,
    Heartbeat,
    Nack,
    Refused,
    Register,
    Registered,
    Taken,
)
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.protocols.abtp import (
    Published,
    Rejected,
    encode_accepted,
    encode_error,
    encode_reply,
)
from transfer.broker.protocols.abtp_envelope import make_head, write_envelope
from transfer.broker.protocols.abtp_words import Code

# --- what producers send ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [(), (b"",)])
def test_an_old_producer(delimiter):
    request = read(*delimiter, TOPIC, b'{"id": 7}')
    found = request.envelope
    assert request.answer == bool(delimiter)
    assert (found.message_id, found.producer_id, found.topic) == ("new-id", PEER.hex(), "orders.created")
    assert (found.payload, found.codec, found.timestamp_unix_ms) == (b'{"id": 7}', "json", NOW)


@pytest.mark.parametrize("flags", [b"\x01", b"1", b"\x03"])
def test_a_new_producer_may_ask_for_an_answer(flags):
    assert read(*new(flags=flags)).answer
    assert not read(*new(flags=b"\x00")).answer and not read(*new()).answer
    assert read(b"", *new()).answer


@pytest.mark.parametrize("version", [b"abtp/1", b"1", b"\x01"])
def test_versions(version):
    assert published(*new(version=version)).topic == "orders.created"
    assert code(*new(version=b"abtp/2")) == Code.UNSUPPORTED_VERSION
    assert code(*new({"spec_version": "abtp/2"})) == Code.UNSUPPORTED_VERSION
    assert code(TOPIC, envelope(spec_version="abtp/0")) == Code.UNSUPPORTED_VERSION


def test_an_envelope_is_taken_apart_and_put_together_again():
    data = envelope(correlation_id="c", unknown={"a": [1, 2]}, headers={"x-own": 1, "idempotency_key": "k"})
    found = published(TOPIC, data)
    assert (found.message_id, found.producer_id, found.timestamp_unix_ms) == ("m-1", "p-1", NOW)
    again = json.loads(write_envelope(found.head, found.payload, found.codec))
    assert again == json.loads(data)


def test_a_payload_is_not_rewritten():
    payload = b'{ "z":1.50,"a":1e3, "big":123456789012345678901234567890,"u":"\\u00e4"}'
    data = envelope(payload="HERE").replace(b'"HERE"', payload)
    found = published(TOPIC, data)
    assert found.payload == payload
    assert payload in write_envelope(found.head, found.payload, "json")


def test_headers_of_a_bare_payload_say_what_its_envelope_would():
    said = {"message_id": "m", "producer_id": "p", "timestamp_unix_ms": 5, "correlation_id": "c", "x": None}
    found = published(*new({**said, "priority": 9, "auth": "secret"}))
    head = json.loads(found.head)
    assert (found.message_id, found.producer_id, found.timestamp_unix_ms) == ("m", "p", 5)
    assert found.priority == "operator" and found.auth == "secret"
    assert head["correlation_id"] == "c" and head["headers"] == {"x": None, "priority": 9}
    assert "auth" not in head


def test_headers_of_frame_and_envelope_together():
    found = published(*new({"a": 1, "b": 1}, envelope(headers={"b": 2})))
    assert found.headers == {"a": 1, "b": 2} == json.loads(found.head)["headers"]


@pytest.mark.parametrize("field", ["message_id", "producer_id", "topic", "payload", "timestamp_unix_ms"])
def test_required_fields(field):
    assert code(TOPIC, envelope(**{field: ...})) == Code.MALFORMED_ENVELOPE


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": ""},
        {"message_id": 7},
        {"message_id": "x" * 256},
        {"producer_id": None},
        {"timestamp_unix_ms": "now"},
        {"timestamp_unix_ms": -1},
        {"timestamp_unix_ms": True},
        {"timestamp_unix_ms": 1 << 63},
        {"correlation_id": 5},
        {"headers": []},
        {"headers": {"ttl_ms": -5}},
        {"headers": {"ttl_ms": "soon"}},
        {"headers": {"tenant_id": 3}},
        {"headers": {"tenant_id": "a/b"}},
        {"deadline_unix_ms": 1.5},
        {"delivery_mode": "carrier pigeon"},
        {"headers": {"codec": "raw"}},
        {"headers": {"codec": "raw"}, "payload": "no base64!"},
    ],
)
def test_malformed_envelopes(wrong):
    request = read(TOPIC, envelope(**wrong))
    assert request.code == Code.MALFORMED_ENVELOPE
    assert not request.text.startswith(Code.MALFORMED_ENVELOPE)


def test_an_error_names_the_message():
    assert read(TOPIC, envelope(timestamp_unix_ms=-1)).message_id == "m-1"
    assert read(*new({"message_id": "h", "codec": "xml"})).message_id == "h"


@pytest.mark.parametrize("topic", [b"", b"a..b", b"a b", b".a", b"a.*", b">", b"\xff", b"x" * 256])
def test_topics_that_may_not_be(topic):
    assert code(*new(topic=topic)) == Code.INVALID_TOPIC
    if topic:
        assert code(topic, b"{}") == Code.INVALID_TOPIC


def test_an_envelope_of_another_topic():
    assert code(b"orders.other", envelope()) == Code.INVALID_TOPIC


def test_times():
    found = published(TOPIC, envelope(headers={"ttl_ms": 500}, deadline_unix_ms=NOW + 900))
    assert found.expires_ms == NOW + 500 and found.due_ms == 0
    assert published(TOPIC, envelope(deadline_unix_ms=NOW + 9)).expires_ms == NOW + 9
    assert published(TOPIC, envelope(headers={"ttl_ms": 0})).expires_ms == NOW
    assert published(TOPIC, envelope(headers={"delay_ms": 50})).due_ms == NOW + 50
    assert published(TOPIC, envelope(headers={"deliver_at_unix_ms": 9, "delay_ms": 1})).due_ms == 9


@pytest.mark.parametrize("frames", [(), (b"",), (TOPIC,), (TOPIC, b"", b""), (b"a", b"b", b"c", b"d")])
def test_other_numbers_of_frames(frames):
    assert code(*frames) == Code.MALFORMED_ENVELOPE


@given(st.lists(st.binary(max_size=40), max_size=7))
@settings(max_examples=200)
def test_anything_is_decided(frames):
    assert isinstance(read(*frames), Rejected | Published)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*ENVELOPE, "headers", "codec", "ttl_ms"]), inner, max_size=6)
        ),
    ),
    st.integers(0, 3),
)
@settings(max_examples=200)
def test_any_json_is_decided(value, shape):
    data = json.dumps(value).encode()
    frames = [
        (TOPIC, data),
        (b"", TOPIC, data),
        (b"abtp/1", b"", TOPIC, data, data),
        (b"", b"_control", data),
    ]
    request = read(*frames[shape])
    assert isinstance(request, Rejected | Published | Register | Heartbeat | Deregister | Ack | Nack)


# --- the document -------------------------------------------------------------------------------------------

DOCUMENT = Path(__file__).parents[2] / "docs/protocols/abtp.md"


def test_the_documents_requests():
    found = frames("abtp")
    for name, topic, payload, answer in (
        ("old producer, DEALER", "a.b", b'{"n":1}', False),
        ("old producer, REQ", "a.b", b'{"n":1}', True),
        ("old producer, LZ4 frame", "a.b", b'{"n":1}', False),
        ("old producer, LZ4 block", "a.b", b'{"n":1}', False),
        ("new producer, raw bytes", "a.b", b"\x00\x01", True),
    ):
        request = read(*found.pop(name))
        assert (request.envelope.topic, request.envelope.payload, request.answer) == (topic, payload, answer)
    envelope_frames = found.pop("old producer, whole envelope")
    assert published(*envelope_frames).message_id == "m-1"
    asks = {
        "register": Register("w", "", "direct", ("a.*",), ConsumerCapabilities(max_inflight=8)),
        "heartbeat": Heartbeat("w", "s-1"),
        "deregister": Deregister("w", "s-1"),
        "ack": Ack("m-1", "w"),
        "nack": Nack("m-1", "w", False, "busy"),
    }
    for name, ask in asks.items():
        assert read(*found.pop(name)).control == ask, name
    answers = {
        "accepted": encode_accepted("m-1"),
        "refused": encode_error(Code.INVALID_TOPIC, "no", "m-1"),
        "registered": encode_reply(Registered("w", "s-1", "registered")),
        "deregistered": encode_reply(Deregistered("w", "s-1")),
        "ack taken": encode_reply(Taken("ack", "w", "m-1", "processed")),
        "stale ack": encode_reply(Refused(Fault.STALE_ACK, "no", "m-1")),
    }
    for name, data in answers.items():
        assert found.pop(name) == [b"", b"_control", data], name
    head = make_head("m-1", "p-1", "a.b", 1, {})
    more = {"attempt": 1, "delivery_id": "7-1", "session_id": "s-1"}
    assert found.pop("a delivery") == [b"", b"a.b", write_envelope(head, b'{"n":1}', "json", **more)]
    assert found.pop("on the PUB socket") == [b"a.b", write_envelope(head, b'{"n":1}', "json")]
    assert found == {}, "a vector that nothing tests"


def test_the_documents_codes():
    text = DOCUMENT.read_text()
    for word in (*Code, *Fault):
        assert f"`{word}`" in text, word
