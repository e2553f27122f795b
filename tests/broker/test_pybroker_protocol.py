"""PyBroker's codec: the document's vectors, limits, and bytes that are no request."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.broker.vectors import vectors
from transfer.broker.protocols.pybroker import (
    GONE,
    MAX_ANSWER,
    Publish,
    PyBrokerFetch,
    encode_fetch,
    encode_gone,
    encode_length,
    encode_publish,
    read_length,
    read_oldest,
    read_request,
)
from transfer.transports.errors import ProtocolError, UsageError

TOPICS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)


def read(data: bytes) -> Publish | PyBrokerFetch | None:
    return read_request(memoryview(data))


def test_the_document_says_what_the_codec_does():
    assert vectors("pybroker") == {
        "PUBLISH hello to logs": encode_publish("logs", 5) + b"hello",
        "PUBLISH nothing to logs": encode_publish("logs", 0),
        "PUBLISH 00 ff to größe": encode_publish("größe", 2) + b"\x00\xff",
        "FETCH logs from 0": encode_fetch("logs", 0),
        "FETCH a from 2^40 + 1": encode_fetch("a", 2**40 + 1),
        "answer: hello": encode_length(5) + b"hello",
        "answer: nothing": encode_length(0),
        "answer: gone, the oldest is 4096": encode_gone(4096),
    }


@given(TOPICS, st.integers(0, 2**32 - 300))
def test_publish_is_read_as_it_was_written(topic, nbytes):
    head = encode_publish(topic, nbytes)
    assert read(head) == Publish(topic, len(head), nbytes)


@given(TOPICS, st.integers(0, 2**64 - 1))
def test_fetch_is_read_as_it_was_written(topic, offset):
    request = encode_fetch(topic, offset)
    assert read(request) == PyBrokerFetch(topic, len(request), offset)
    assert all(read(request[:end]) is None for end in range(len(request)))


def test_a_request_is_read_where_it_stands():
    data = memoryview(b"...." + encode_fetch("a", 7))
    assert read_request(data, 4) == PyBrokerFetch("a", len(data) - 4, 7)


@given(st.binary(max_size=40))
@settings(max_examples=300)
def test_any_bytes_are_a_request_or_refused_or_too_few(data):
    request, refused = None, ""
    try:
        request = read(data)
    except ProtocolError as error:
        refused = error.reason
    assert refused in ("", "type", "length", "topic")
    assert refused or request is None or request.size <= len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00000005 00", "type"),
        ("00000005 03 01 61", "type"),
        ("ffffffff ff", "type"),
        ("00000000 01", "length"),
        ("00000001 01", "length"),
        ("00000005 01 00", "topic"),
        ("00000005 01 05", "length"),  # the topic would be longer than the request
        ("00000009 02 01", "length"),  # an offset of seven bytes
        ("0000000b 02 01", "length"),  # and one of nine
        ("ffffffff 02 01", "length"),
        ("00000003 01 02 c328", "topic"),
        ("00000003 01 02 6100", "topic"),
    ],
)
def test_what_is_wrong_is_told_as_soon_as_it_shows(data, reason):
    data = bytes.fromhex(data)
    assert read(data[:4]) is None
    with pytest.raises(ProtocolError) as caught:
        read(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize("topic", ["", "a\0b", "x" * 256, "ß" * 128, "\ud800"])
def test_a_topic_that_cannot_be_is_the_callers_mistake(topic):
    with pytest.raises(UsageError):
        encode_publish(topic, 1)
    with pytest.raises(UsageError):
        encode_fetch(topic, 0)


def test_the_largest_payload():
    most = 2**32 - 1 - 1 - 4
    assert read(encode_publish("logs", most)) == Publish("logs", 10, most)
    with pytest.raises(UsageError, match=str(most)):
        encode_publish("logs", most + 1)


@pytest.mark.parametrize("offset", [-1, 2**64])
def test_an_offset_beyond_64_bits_is_the_callers_mistake(offset):
    with pytest.raises(UsageError):
        encode_fetch("logs", offset)


def test_lengths_of_answers():
    assert read_length(encode_length(MAX_ANSWER)) == MAX_ANSWER
    with pytest.raises(ProtocolError):
        read_length(encode_length(MAX_ANSWER + 1))
    gone = encode_gone(2**63)
    assert read_length(gone) == GONE
    assert read_oldest(gone[4:]) == 2**63
