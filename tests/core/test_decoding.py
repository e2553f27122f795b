"""Frames cut at any byte decode to the same messages: hypothesis against a model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.core.raw_frames import (
    CONTROL,
    CRC,
    EXTENDED,
    EXTENDED_META,
    META,
    MORE,
    TENSOR,
    TOPIC,
    Raw,
    plain,
    read,
)  # fmt: skip
from transfer.transports.errors import Broken, ProtocolError

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZES = st.sampled_from([0, 1, 47, 100, 4095, 4096, 4097, 65535, 65536, 70_001])


@st.composite
def raws(draw) -> Raw:
    if draw(st.integers(0, 5)) == 0:
        return Raw(draw(st.binary(min_size=1, max_size=50)), CONTROL | draw(st.sampled_from([0, CRC])))
    flags, meta, topic = draw(st.sampled_from([0, MORE])) | draw(st.sampled_from([0, CRC])), b"", b""
    kind = draw(st.integers(0, 2))
    if kind == 1:
        flags, meta = flags | TENSOR, META
    elif kind == 2:
        flags, meta = flags | TENSOR | EXTENDED, EXTENDED_META
    if draw(st.booleans()):
        flags, topic = flags | TOPIC, draw(st.binary(max_size=20))
    seed = draw(st.integers(1, 255))
    size = draw(SIZES)
    data = bytes((seed * index) % 256 for index in range(256)) * (size // 256 + 1)
    return Raw(data[:size], flags, draw(st.integers(0, 2**64 - 1)), meta, topic)


def model(frames: list[Raw]) -> list[list[Raw]]:
    """The messages that these frames are; control frames stand alone."""
    messages: list[list[Raw]] = []
    parts: list[Raw] = []
    for frame in frames:
        if frame.flags & CONTROL:
            messages.append([frame])
            continue
        parts.append(frame)
        if not frame.flags & MORE:
            messages.append(parts)
            parts = []
    return messages


def shape(frame) -> tuple:
    if isinstance(frame, Raw):
        topic = frame.topic if frame.flags & TOPIC else None
        return frame.flags, frame.sequence, topic, frame.meta or None, frame.data
    return frame.flags, frame.sequence, frame.topic, frame.meta, frame.bytes


def feed(stream, far, data: bytes, cuts: list[int]) -> list[list[tuple]]:
    """Gives the stream the bytes piece by piece, and all it decodes after each piece."""
    messages = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = memoryview(data)[start:end]
        while True:
            if piece:
                piece = piece[far.send(piece[:50_000]) :]
            while (message := stream.receive()) is not None:
                messages.append([shape(frame) for frame in message])
            if not piece:
                break
    return messages


@QUICK
@given(frames=st.lists(raws(), max_size=6), data=st.data())
def test_any_cut_decodes_the_same(kit, frames, data):
    stream, far = kit.raw()
    encoded = b"".join(frame.encode() for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=12)))
    expected = [[shape(frame) for frame in message] for message in model(frames)]
    assert feed(stream, far, encoded, cuts) == expected
    assert stream.received == sum(not message[0].flags & CONTROL for message in model(frames))
    stream.close()
    far.close()


def test_byte_by_byte(kit):
    stream, far = kit.raw()
    frames = [
        Raw(b"a" * 10, CRC),
        Raw(b"b" * 10, TENSOR | TOPIC | CRC, 2, META, b"topic"),
        Raw(b"c", MORE, 3),
        Raw(b"\x06", CONTROL, 0),
        Raw(b"d" * 5000, TENSOR | EXTENDED, 3, EXTENDED_META),
        Raw(b"e", 0, 4),
    ]
    encoded = b"".join(frame.encode() for frame in frames)
    found = feed(stream, far, encoded, list(range(len(encoded))))
    assert found == [[shape(frame) for frame in message] for message in model(frames)]


@QUICK
@given(garbage=st.binary(min_size=34, max_size=300))
def test_garbage_is_refused_or_waits(kit, garbage):
    stream, far = kit.raw(max_message=1 << 20)
    far.sendall(garbage)
    far.close()
    with pytest.raises((ProtocolError, Broken)):
        while True:
            stream.receive()
    assert kit.pool.in_use <= 2 << 20
    stream.close()


@QUICK
@given(
    frames=st.lists(
        st.tuples(SIZES, st.sampled_from([None, b"", b"topic"]), st.booleans()), min_size=1, max_size=5
    ),
    checksum=st.booleans(),
)
def test_what_is_sent_is_what_hand_made_frames_say(kit, frames, checksum):
    stream, far = kit.raw("tcp", checksum=checksum)
    crc = CRC if checksum else 0
    out, expected = [], b""
    for number, (size, topic, tensor) in enumerate(frames):
        flags = (TENSOR if tensor else 0) | crc
        more = MORE if number < len(frames) - 1 else 0
        data, meta = b"\xa5" * size, META if tensor else None
        out.append(plain(data, flags=flags, topic=topic, meta=meta))
        flags |= more | (TOPIC if topic is not None else 0)
        expected += Raw(data, flags, 1, meta or b"", topic or b"").encode()
    assert stream.send(out)
    assert read(far, len(expected)) == expected
    stream.close()
    far.close()
