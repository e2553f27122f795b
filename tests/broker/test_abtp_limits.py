"""What one peer of abtp, or all of them, may have at most: the parts that decide it, without sockets."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.abtp_pub import MOST_PREFIXES, PubSubscriber
from transfer.broker.fronts.abtp_unrouted import _MOST_BYTES, AwaitingRoute
from transfer.broker.protocols.abtp import (
    MAX_SUBSCRIPTIONS,
    AbtpLimits,
    ProtocolError,
    Published,
    read_control,
    read_frames,
)
from transfer.broker.protocols.abtp_envelope import may_be_compressed
from transfer.broker.protocols.abtp_words import MAX_CONTROL


def register(**changed):
    said = {"type": "consumer.register", "consumer_id": "c", "tenant_id": "t", "mode": "push",
            "subscriptions": ["a"], "capabilities": {"supports_ack": True, "max_inflight": 1}}  # fmt: skip
    return json.dumps(said | changed).encode()


def test_a_control_message_and_its_subscriptions():
    assert read_control(register(padding="")).consumer_id == "c"
    assert read_control(register(subscriptions=["a"] * MAX_SUBSCRIPTIONS)).consumer_id == "c"
    with pytest.raises(ProtocolError, match="subscriptions"):
        read_control(register(subscriptions=["a"] * (MAX_SUBSCRIPTIONS + 1)))
    room = MAX_CONTROL - len(register(padding=""))
    assert read_control(register(padding="x" * room)).consumer_id == "c"
    with pytest.raises(ProtocolError, match="bytes"):
        read_control(register(padding="x" * (room + 1)))


@pytest.mark.parametrize("payload", [1, "x" * 1_000_000])
def test_an_envelope_without_its_payload(payload):
    """A decoder holds the interpreter for a second while it makes a million fields of one."""

    def read(more):
        said = {"spec_version": "abtp/1", "message_id": "m", "producer_id": "p", "topic": "t",
                "timestamp_unix_ms": 1, "more": "x" * more, "payload": payload}  # fmt: skip
        text = json.dumps(said).encode()
        return read_frames([b"peer", b"t", text], 1, "id", AbtpLimits()), len(text) - len(json.dumps(payload))

    room = MAX_CONTROL - read(0)[1]
    assert isinstance(read(room)[0], Published)
    refused = read(room + 1)[0]
    assert (refused.code, refused.message_id) == ("malformed_envelope", "m") and "65,536" in refused.text


def test_fields_of_an_envelope_are_not_made_before_they_are_counted():
    fields = b",".join(b'"%d":1' % number for number in range(100_000))
    text = b'{"spec_version":"abtp/1","message_id":"m","payload":1,' + fields + b"}"
    assert "65,536" in read_frames([b"peer", b"t", text], 1, "id", AbtpLimits()).text


@pytest.mark.parametrize(
    ("headers", "data", "may"),
    [
        (b"", b'{"a":1}', False),
        (b"", b"\x04\x22\x4d\x18...", True),
        (b"", b"a block", True),
        (b'{"codec":"raw"}', b"bytes", False),
        (b'{"compression":"zstd"}', b"bytes", True),
        (b'{"compressio\\u006e":"zstd"}', b"bytes", True),
    ],
)
def test_what_may_be_compressed_is_seen_by_a_look(headers, data, may):
    assert may_be_compressed(headers, data) == may


class Loop:
    """A clock that stands."""

    def time(self):
        return 0.0

    def call_at(self, *_):
        return SimpleNamespace(cancel=lambda: None)


def held(waiting, topic="a", nbytes=1):
    envelope, message = SimpleNamespace(tenant="", topic=topic), SimpleNamespace(nbytes=nbytes)
    return waiting.hold(b"peer", envelope, message, lambda _: None, None)


def test_messages_that_wait_for_a_consumer():
    waiting = AwaitingRoute(Loop(), 5.0, 4, 2, lambda _: None)
    assert [held(waiting) for _ in range(3)] == [True, True, False], "of a topic"
    assert [held(waiting, str(number)) for number in range(3)] == [True, True, False], "in all"
    waiting = AwaitingRoute(Loop(), 5.0, 4, 2, lambda _: None)
    assert held(waiting, nbytes=_MOST_BYTES) and not held(waiting, "b"), "their bytes"


def test_more_prefixes_than_are_told_apart():
    """The next ones count as all topics, so that no subscriber misses a message."""
    wanted = []
    fanout = SimpleNamespace(subscribe=lambda _, found: wanted.append(found))
    subscriber = PubSubscriber(SimpleNamespace(fanout=fanout), lambda *_: None, 1)
    for number in range(MOST_PREFIXES + 2):
        subscriber.on_subscription(b"\1topic%d" % number)
    everything = pattern(Kind.PREFIX, "")
    assert wanted[MOST_PREFIXES:] == [everything] * 2
    assert everything not in wanted[:MOST_PREFIXES]
