"""What one peer of abtp, or all of them, may have at most: the parts that decide it, without sockets."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from transfer.broker.engine.grammar import Kind, pattern
from transfer.broker.fronts.abtp_awaiting import _MOST_BYTES, AwaitingRoute
from transfer.broker.fronts.abtp_pub import MOST_PREFIXES, PubSubscriber
from transfer.protocols.abtp import MAX_CONTROL, MAX_SUBSCRIPTIONS, ProtocolError, read_control


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
        subscriber.heard(b"\1topic%d" % number)
    everything = pattern(Kind.PREFIX, "")
    assert wanted[MOST_PREFIXES:] == [everything] * 2
    assert everything not in wanted[:MOST_PREFIXES]
