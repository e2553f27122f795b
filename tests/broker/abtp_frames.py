"""Frames of abtp/1 for tests, and what the codec makes of them."""

from __future__ import annotations

import json

from transfer.broker.protocols.abtp import (
    AbtpLimits,
    Published,
    Rejected,
    read_frames,
)

PEER, NOW = b"\x00peer", 1_700_000_000_000
SMALL = AbtpLimits(100_000)
ENVELOPE = {
    "spec_version": "abtp/1",
    "message_id": "m-1",
    "producer_id": "p-1",
    "topic": "orders.created",
    "payload": {"id": 7},
    "timestamp_unix_ms": NOW,
}
TOPIC = b"orders.created"


def read(*frames, limits=SMALL):
    return read_frames([PEER, *frames], NOW, "new-id", limits)


def published(*frames, limits=SMALL):
    request = read(*frames, limits=limits)
    assert isinstance(request, Published), request
    return request.envelope


def code(*frames, limits=SMALL):
    request = read(*frames, limits=limits)
    assert isinstance(request, Rejected), request
    return request.code


def envelope(**changes):
    fields = {**ENVELOPE, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def new(headers=None, payload=b"{}", topic=TOPIC, version=b"abtp/1", flags=b""):
    return version, flags, topic, json.dumps(headers or {}).encode(), payload
