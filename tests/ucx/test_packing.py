"""Batches of frames, without UCX."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from transfer.transports import core
from transfer.transports.core.wire import TENSOR_HEADER, Flag, SocketType
from transfer.transports.errors import ProtocolError
from transfer.transports.sizes import LARGE
from transfer.transports.ucx.packing import LONGEST, TAKEN, Unpacker, pack

KIND = int(SocketType.PUSH)
TENSOR = int(Flag.TENSOR)
META = TENSOR_HEADER.pack(0, 1, 25, 0, 0, 0, 0)


def batches(messages, checksum=False):
    """What a sender posts: (batch or payload) in order, cut as it likes."""
    out, chunks = [], []
    for number, frames in enumerate(messages, 1):
        for index, frame in enumerate(frames):
            more = index < len(frames) - 1
            chunks.append(pack(frame, KIND, number, more, checksum, len(frame[4])))
            if len(frame[4]) >= LARGE:
                out += [TAKEN.pack(7) + b"".join(chunks), frame[4]]
                chunks = []
    return [*out, TAKEN.pack(7) + b"".join(chunks)]


def unpacked(pieces, max_message=1 << 30):
    pool = core.Pool()
    unpacker = Unpacker(max_message, pool)
    found = []
    for piece in pieces:
        if unpacker.awaited is not None:
            assert unpacker.awaited.length == len(piece)
            unpacker.begin()
            unpacker.fill(piece)
        else:
            assert unpacker.feed(piece) == 7
        while unpacker.messages:
            found.append(unpacker.messages.popleft())
    pool.close()
    return found


frame = st.tuples(
    st.sampled_from([0, int(Flag.ACK)]),
    st.integers(0, 1 << 40),
    st.none() | st.binary(max_size=20),
    st.none(),
    st.binary(max_size=200) | st.integers(LARGE - 1, LARGE + 2).map(bytes),
)
tensor = st.binary(max_size=100).map(lambda data: (TENSOR, 0, None, META, data))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(frame | tensor, min_size=1, max_size=4), min_size=1, max_size=6), st.booleans())
def test_round_trip(messages, checksum):
    found = unpacked(batches(messages, checksum))
    assert len(found) == len(messages)
    for number, (sent, got) in enumerate(zip(messages, found, strict=True), 1):
        assert [bytes(frame.buffer) for frame in got] == [frame[4] for frame in sent]
        assert [frame.topic for frame in got] == [frame[2] for frame in sent]
        assert [frame.meta for frame in got] == [frame[3] for frame in sent]
        assert [frame.more for frame in got] == [True] * (len(sent) - 1) + [False]
        assert [frame.sequence for frame in got] == [frame[1] or number for frame in sent]
        assert {frame.socket_type for frame in got} == {KIND}


def test_small_tensors_are_writable():
    [[got]] = unpacked(batches([[(TENSOR, 0, None, META, b"1234")]]))
    memoryview(got.data)[:] = b"abcd"
    assert got.bytes == b"abcd"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_batches_end_in_an_error_or_in_frames(data):
    """No other exception, and nothing longer than the batch."""
    good = batches([[(0, 0, b"topic", None, b"x" * 50)], [(TENSOR, 0, None, META, b"y" * 30)]])[0]
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    pool = core.Pool()
    unpacker = Unpacker(1 << 20, pool)
    with suppress(ProtocolError):
        unpacker.feed(damaged)
    assert sum(len(frame.buffer) for frames in unpacker.messages for frame in frames) <= len(good)
    unpacker.messages.clear()
    pool.close()


def test_a_damaged_payload_is_found_by_its_checksum():
    pieces = batches([[(0, 0, None, None, bytes(LARGE))]], checksum=True)
    pieces[1] = b"\1" + bytes(LARGE - 1)
    with pytest.raises(ProtocolError, match="checksum"):
        unpacked(pieces)


def test_the_longest_batch_holds_whatever_one_frame_needs():
    topic = b"t" * (64 * 1024)
    chunk = pack((0, 0, topic, None, bytes(LARGE - 1)), KIND, 1, False, True, LARGE - 1)
    assert TAKEN.size + len(chunk) < LONGEST


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(frame | tensor, min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_payloads_that_are_begun_before_others_are_there(messages, data):
    """However many are under way: every message once, in order, whole, and none before its payload."""
    pool = core.Pool()
    unpacker = Unpacker(1 << 30, pool)
    pieces, under_way, found = batches(messages), [], []
    while pieces or under_way:
        if under_way and (not pieces or data.draw(st.booleans())):
            unpacker.fill(under_way.pop(0))
        elif unpacker.awaited is not None:
            unpacker.begin()
            under_way.append(pieces.pop(0))
        else:
            unpacker.feed(pieces.pop(0))
        while unpacker.messages:
            found.append([bytes(frame.buffer) for frame in unpacker.messages.popleft()])
    assert found == [[frame[4] for frame in message] for message in messages]
    pool.close()


@pytest.mark.parametrize(
    ("topic", "sizes"),
    [(None, [4000] * 26), (None, [LARGE, LARGE, 1]), (bytes(4000), [0] * 26)],
    ids=["small", "apart", "topics"],
)
def test_the_limit_of_a_message_is_for_all_its_parts(topic, sizes):
    limit = 2 * LARGE if LARGE in sizes else 100_000
    good = [(0, 0, None, None, bytes(limit // 2))] * 2
    assert len(unpacked(batches([good, good]), limit)) == 2  # each by itself
    with pytest.raises(ProtocolError) as caught:
        unpacked(batches([[(0, 0, topic, None, bytes(size)) for size in sizes]]), limit)
    assert caught.value.reason == "too_large"
