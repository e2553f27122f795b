"""abtp/1's codec: compression, what consumers say, and what they receive."""

from __future__ import annotations

import base64
import json

import lz4.block
import lz4.frame
import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.abtp_frames import NOW, TOPIC, code, envelope, new, published, read
from transfer.broker.core.dispatcher_actions import (
    Ack,
    Deregister,
    Heartbeat,
    Nack,
    Register,
)
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.protocols.abtp import (
    AbtpControl,
    AbtpLimits,
    encode_control,
    encode_register,
    read_control,
)
from transfer.broker.protocols.abtp_delivered import read_delivered
from transfer.broker.protocols.abtp_envelope import make_head, write_envelope
from transfer.broker.protocols.abtp_lz4 import compress, decompress
from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import ProtocolError

# --- codecs and compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "packed",
    [lz4.frame.compress, lambda data: lz4.block.compress(data, store_size=False)],
    ids=["frame", "block"],
)
def test_lz4_with_and_without_headers(packed):
    data = envelope(payload="x" * 20_000)
    for frames in ((TOPIC, packed(data)), new({"compression": "lz4"}, packed(data))):
        found = published(*frames)
        assert found.message_id == "m-1" and len(found.payload) == 20_002
        assert "compression" not in found.headers and b"compression" not in found.head
    raw = published(*new({"compression": "lz4", "codec": "raw"}, packed(b"\0\1\2" * 99)))
    assert raw.payload == b"\0\1\2" * 99 and raw.codec == "raw"


def test_bytes_that_are_nothing_else_are_bytes():
    found = published(TOPIC, b"hello")
    assert (found.payload, found.codec) == (b"hello", "raw")
    written = json.loads(write_envelope(found.head, found.payload, found.codec))
    assert base64.b64decode(written["payload"]) == b"hello" and written["headers"] == {"codec": "raw"}
    assert published(TOPIC, b"").payload == b""
    assert published(TOPIC, b'"\xff"').codec == "raw"


def test_headers_decide():
    packed = lz4.frame.compress(b"{}")
    assert code(*new({"compression": "none"}, packed)) == Code.MALFORMED_ENVELOPE
    assert code(*new({}, packed)) == Code.MALFORMED_ENVELOPE
    assert code(*new({"compression": "lz4"}, b"\xff{}")) == Code.MALFORMED_ENVELOPE
    assert published(*new({"codec": "raw"}, packed)).payload == packed
    assert published(*new({"codec": "raw"}, envelope())).payload == envelope()


def test_unknown_codecs():
    assert code(*new({"codec": "xml"})) == Code.UNSUPPORTED_CODEC
    assert code(*new({"compression": "brotli"})) == Code.UNSUPPORTED_COMPRESSION
    assert code(TOPIC, envelope(headers={"compression": "gzip"})) == Code.UNSUPPORTED_COMPRESSION


def test_raw_in_an_envelope_is_base64():
    data = envelope(payload=base64.b64encode(b"\0\xff").decode(), headers={"codec": "raw"})
    assert published(TOPIC, data).payload == b"\0\xff"


@pytest.mark.parametrize(
    "packed",
    [lz4.frame.compress, lambda data: lz4.block.compress(data, store_size=False)],
    ids=["frame", "block"],
)
def test_bombs_are_refused(packed):
    bomb = packed(b"1" * 50_000_000)
    assert len(bomb) < 250_000
    limits = AbtpLimits(1_000_000)
    assert code(TOPIC, bomb, limits=limits) == Code.OVERSIZED_PAYLOAD
    assert code(*new({"compression": "lz4"}, bomb), limits=limits) == Code.OVERSIZED_PAYLOAD
    assert decompress(packed(b"1" * 1_000_000), 1_000_000) == b"1" * 1_000_000


def test_large_payloads_are_refused():
    assert code(TOPIC, b"1" * 101, limits=AbtpLimits(100)) == Code.OVERSIZED_PAYLOAD
    assert code(*new({}, b"1" * 101), limits=AbtpLimits(100)) == Code.OVERSIZED_PAYLOAD


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_damaged_frames(cut):
    packed = lz4.frame.compress(b"1" * 1000)
    for damaged in (packed[:-cut], packed + b"x"):
        with pytest.raises(ProtocolError, match="LZ4 frame"):
            decompress(damaged, 10_000)


@given(st.binary(max_size=300), st.integers(0, 2000))
@settings(max_examples=200)
def test_decompression_is_bounded(data, limit):
    try:
        size, reason = len(decompress(data, limit)), None
    except ProtocolError as error:
        size, reason = 0, error.reason
    assert size <= limit
    assert reason in (None, Code.OVERSIZED_PAYLOAD, Code.MALFORMED_ENVELOPE)


@given(st.binary(max_size=2000), st.integers(1, 40))
@settings(max_examples=100)
def test_what_was_compressed_comes_back(data, times):
    data *= times
    assert decompress(compress(data), len(data)) == data
    block = lz4.block.compress(data, store_size=False)
    assert decompress(block, max(len(data), 1)) == data


# --- control ------------------------------------------------------------------------------------------------

IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
OPTIONAL = st.none() | IDS
NAMES = st.lists(IDS, max_size=3, unique=True).map(tuple)
CAPABLE = st.builds(ConsumerCapabilities, st.booleans(), NAMES, NAMES.filter(bool), st.integers(1, 5000))
PATTERNS = st.lists(IDS, max_size=4, unique=True).map(tuple)
TENANTS = st.sampled_from(["", "t"])


@given(st.builds(Register, IDS, TENANTS, st.sampled_from(["direct", "fanout"]), PATTERNS, CAPABLE, OPTIONAL))
@settings(max_examples=100)
def test_registrations_read_back(ask):
    data = encode_register(ask)
    assert read(b"", b"_control", data) == read(b"_control", data) == AbtpControl(ask, data, b"")


@given(
    st.one_of(
        st.builds(Heartbeat, IDS, IDS, st.booleans()),
        st.builds(Deregister, IDS, OPTIONAL),
        st.builds(Ack, IDS, IDS, OPTIONAL, OPTIONAL, st.booleans()),
        st.builds(Nack, IDS, IDS, st.booleans(), IDS, OPTIONAL, OPTIONAL, st.booleans()),
    )
)
@settings(max_examples=100)
def test_requests_read_back(ask):
    data = encode_control(ask, NOW)
    assert read(b"", b"_control", data, b"signature") == AbtpControl(ask, data, b"signature")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"supports_codec": "json"}, ConsumerCapabilities(supports_codec=("json",))),
        ({"supports_codec": ["raw"]}, ConsumerCapabilities(supports_codec=("raw",))),
        ({"supports_codec": True}, ConsumerCapabilities()),
        ({"supports_compression": True}, ConsumerCapabilities(supports_compression=("lz4",))),
        (
            {"supports_compression": ["zstd", "lz4"]},
            ConsumerCapabilities(supports_compression=("zstd", "lz4")),
        ),
        ({"supports_compression": "lz4"}, ConsumerCapabilities(supports_compression=("lz4",))),
        ({"supports_compression": False}, ConsumerCapabilities()),
        (
            {"supports_ack": False, "max_inflight": 2},
            ConsumerCapabilities(supports_ack=False, max_inflight=2),
        ),
    ],
)
def test_capabilities_as_others_say_them(said, meant):
    data = json.dumps({"type": "consumer.register", "consumer_id": "c", "capabilities": said}).encode()
    assert read_control(data).capabilities == meant


def test_the_plainest_ack():
    data = b'{"type":"ack","message_id":"m","consumer_id":"c","status":"processed","processed_at":"2026"}'
    assert read_control(data) == Ack("m", "c")
    nack = b'{"type":"nack","message_id":"m","consumer_id":"c","status":"terminal_error","reason":null}'
    assert read_control(nack) == Nack("m", "c", True)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"other","consumer_id":"c"}',
        b'{"type":"ack","message_id":"m"}',
        b'{"type":"ack","message_id":"m","consumer_id":"c","status":"nearly"}',
        b'{"type":"nack","message_id":"m","consumer_id":"c","status":"processed"}',
        b'{"type":"consumer.heartbeat","consumer_id":"c"}',
        b'{"type":"consumer.register","consumer_id":""}',
        b'{"type":"consumer.register","consumer_id":"c","capabilities":{"max_inflight":0}}',
        b'{"type":"consumer.register","consumer_id":"c","tenant_id":"a/b"}',
        b'{"type":"consumer.register","consumer_id":"c","subscriptions":"t"}',
        b'{"type":"consumer.deregister","consumer_id":"' + b"x" * 300 + b'"}',
        b'{"type":"ack","consumer_id":"c","message_id":"' + b"x" * 300 + b'"}',
        b'{"type":"consumer.heartbeat","consumer_id":"c","session_id":"' + b"x" * 300 + b'"}',
        b'"' + b"x" * 100_000 + b'"',
        b"[" * 60_000,
    ],
)
def test_malformed_control(wrong):
    assert code(b"", b"_control", wrong) == Code.MALFORMED_CONTROL


# --- what consumers receive ---------------------------------------------------------------------------------


@given(st.binary(max_size=50), st.booleans())
@settings(max_examples=50)
def test_delivered_bytes(payload, packed):
    head = make_head("m", "p", "t", 5, {"codec": "raw", "own": [1]})
    data = write_envelope(head, payload, "raw", attempt=2, delivery_id="7-2", session_id="s")
    found = read_delivered(compress(data) if packed else data, 10_000)
    assert (found.payload, found.attempt, found.delivery_id, found.session_id) == (payload, 2, "7-2", "s")
    assert (found.topic, found.message_id, found.producer_id) == ("t", "m", "p")
    assert found.headers == {"codec": "raw", "own": [1]} and found.fields["spec_version"] == "abtp/1"


def test_delivered_json():
    data = write_envelope(make_head("m", "p", "t", 5, {}), b'{"a":[1]}', "json")
    assert read_delivered(data, 1000).payload == {"a": [1]}


@pytest.mark.parametrize("wrong", [b"", b"{}", b"nonsense", b'{"topic":1}', compress(b"x" * 5000)])
def test_what_is_no_envelope(wrong):
    with pytest.raises(ProtocolError):
        read_delivered(wrong, 1000)
