"""Records as bytes: what was written is read, and nothing else is taken for a record."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from transfer.log.record import (
    HEADER_SIZE,
    MAX_LAG,
    RecordKind,
    decode,
    encode as parts_of,
    encode_messages,
    scan,
    state_body,
    state_of,
)


def encode(*said):
    return b"".join(parts_of(*said))


WORDS = st.integers(0, (1 << 64) - 1)


@given(
    st.sampled_from(RecordKind), st.integers(0, 255), st.integers(0, (1 << 32) - 1), WORDS, WORDS, WORDS,
    st.integers(0, 1 << 40), st.binary(max_size=200), st.binary(max_size=50),
)  # fmt: skip
def test_what_was_written_is_read(kind, flags, topic, sequence, offset, time, lag, body, before):
    data = encode(kind, flags, topic, sequence, offset, time, lag, body)
    record = decode(memoryview(before + data + before), len(before))
    assert record[1:8] == (kind, flags, topic, sequence, offset, time, min(lag, MAX_LAG))
    assert bytes(record.body) == body
    assert record.end == len(before) + HEADER_SIZE + len(body)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_one_byte_that_is_cut_or_changed_is_found(body, data):
    whole = encode(RecordKind.MESSAGE, 0, 1, 5, 7, 9, 0, body)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode(memoryview(whole)[:cut], 0) is None
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert decode(memoryview(changed), 0) is None


def test_lengths_are_checked_before_anything_is_read():
    header = bytearray(encode(RecordKind.MESSAGE, 0, 1, 5, 7, 9, 0, b""))
    for length in (1, 1 << 30, (1 << 30) + 1, (1 << 32) - 1):
        struct.pack_into("<I", header, 8, length)
        assert decode(memoryview(header), 0) is None
        assert decode(memoryview(header), 0, verify=False) is None


def test_records_of_another_sequence_are_not_those_that_follow():
    records = [encode(RecordKind.MESSAGE, 0, 1, number, number, 0, 0, b"x" * number) for number in range(10)]
    memory = memoryview(b"".join(records) + bytes(100))
    assert [record.sequence for record in scan(memory, 0)] == list(range(10))
    assert list(scan(memory, 1)) == []
    skipping = memoryview(b"".join(records[:4] + records[5:]))
    assert [record.sequence for record in scan(skipping, 0)] == [0, 1, 2, 3]


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_state(key, value):
    assert state_of(memoryview(state_body(key, value))) == (key, value)


@pytest.mark.parametrize("verify", [True, False])
def test_zeros_are_no_record(verify):
    assert decode(memoryview(bytes(1000)), 0, verify=verify) is None


@given(
    st.lists(st.tuples(WORDS.map(lambda one: one >> 32), WORDS, st.binary(max_size=50)), max_size=8), WORDS
)
def test_many_messages_are_as_if_each_was_written_alone(messages, time):
    for lag in (0, 5, MAX_LAG - 2):
        chunks, positions, end = encode_messages(messages, 7, time, lag, 100)
        alone = [
            encode(RecordKind.MESSAGE, 0, topic, 7 + at, offset, time, lag + at, body)
            for at, (topic, offset, body) in enumerate(messages)
        ]
        assert b"".join(chunks) == b"".join(alone)
        places = [100 + sum(map(len, alone[:at])) for at in range(len(alone) + 1)]
        assert [*positions, end] == places
