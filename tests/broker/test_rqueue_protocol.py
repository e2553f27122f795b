"""rqueue's codec: the document's vectors, limits, and bytes that are no message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.vectors import vectors
from transfer.broker.protocols.rqueue import (
    MAX_CONTENT,
    RqueueHead,
    Type,
    encode_deregister,
    encode_notification,
    encode_publish,
    encode_remove,
    encode_subscribe,
    read_head,
)
from transfer.transports.errors import ProtocolError, UsageError

TOPICS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)


def test_the_document_says_what_the_codec_does():
    found = vectors("rqueue")
    as_remove = found.pop("DEREGISTER, as REMOVE of nothing")
    assert read_head(as_remove) == RqueueHead(Type.DEREGISTER, "", 5, 0) == read_head(encode_deregister())
    assert found == {
        "PUBLISH hello to news": encode_publish("news", 5) + b"hello",
        "PUBLISH nothing to a": encode_publish("a", 0),
        "SUBSCRIBE news": encode_subscribe("news"),
        "SUBSCRIBE größe": encode_subscribe("größe"),
        "REMOVE news": encode_remove("news"),
        "DEREGISTER": encode_deregister(),
        "NOTIFICATION hello on news": encode_notification("news", 5) + b"hello",
        "NOTIFICATION of nothing on a": encode_notification("a", 0),
    }


@given(TOPICS, st.integers(0, 2**32 - 300))
def test_what_was_written_is_read(topic, nbytes):
    heads = {
        Type.PUBLISH: (encode_publish(topic, nbytes), nbytes),
        Type.NOTIFICATION: (encode_notification(topic, nbytes), nbytes),
        Type.SUBSCRIBE: (encode_subscribe(topic), 0),
        Type.REMOVE: (encode_remove(topic), 0),
    }
    for kind, (data, content) in heads.items():
        assert read_head(data) == RqueueHead(kind, topic, len(data), content)
        assert all(read_head(data[:end]) is None for end in range(len(data)))


def test_a_message_is_read_where_it_stands():
    assert read_head(memoryview(b"..." + encode_remove("a")), 3) == RqueueHead(Type.REMOVE, "a", 7, 0)


def test_publish_is_a_notification_behind_a_preamble():
    head = encode_publish("news", 1000)
    assert head[5:] == encode_notification("news", 1000)


@given(st.binary(max_size=40))
@settings(max_examples=300)
def test_any_bytes_are_a_message_or_refused_or_too_few(data):
    head, refused = None, ""
    try:
        head = read_head(data)
    except ProtocolError as error:
        refused = error.reason
    assert refused in ("", "type", "length", "topic")
    assert refused or head is None or head.size <= len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00000002 03", "type"),
        ("00000002 ff", "type"),
        ("00000000 00", "length"),
        ("00000006 00", "length"),
        ("00000000 01", "length"),
        ("00000001 02", "length"),
        ("00000001 05", "length"),
        ("00000101 01", "length"),
        ("00000001 07", "length"),
        ("00000003 01 01", "length"),  # a byte behind the topic
        ("00000003 01 03", "length"),  # a topic that is longer than the message
        ("00000003 01 00", "topic"),
        ("00000003 01 02 c328", "topic"),
        ("00000003 02 02 6100", "topic"),
        ("00000008 00 00000003 00 01", "type"),  # PUBLISH of a PUBLISH
        ("00000008 00 00000002 07 01", "length"),  # the two lengths do not agree
        ("00000007 00 ffffffff 07 01", "length"),
        ("00000007 00 00000002 07 02", "length"),
        ("00000007 00 00000002 07 00", "topic"),
        ("00000007 00 00000002 07 01 80", "topic"),
    ],
)
def test_what_is_wrong_is_told_as_soon_as_it_shows(data, reason):
    data = bytes.fromhex(data)
    assert read_head(data[:4]) is None
    with pytest.raises(ProtocolError) as caught:
        read_head(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize("encode", [encode_subscribe, encode_remove, lambda topic: encode_publish(topic, 1)])
@pytest.mark.parametrize("topic", ["", "a\0b", "x" * 256, "ß" * 128, "\ud800"])
def test_a_topic_that_cannot_be_is_the_callers_mistake(topic, encode):
    with pytest.raises(UsageError):
        encode(topic)


def test_the_largest_content():
    head = encode_publish("a", MAX_CONTENT)
    assert read_head(head) == RqueueHead(Type.PUBLISH, "a", len(head), MAX_CONTENT)
    for encode, most in ((encode_publish, MAX_CONTENT), (encode_notification, MAX_CONTENT + 5)):
        encode("a", most)
        with pytest.raises(UsageError):
            encode("a", most + 1)
