"""What a stream writes and what it understands, against frames built by hand."""

from __future__ import annotations

import threading
import zlib

import numpy
import pytest

from tests.core.raw_frames import (
    ACK,
    CONTROL,
    CRC,
    EXTENDED,
    EXTENDED_META,
    LZ4,
    META,
    MORE,
    TENSOR,
    TOPIC,
    Raw,
    decode,
    eventually,
    plain,
    read,
    read_frame,
)  # fmt: skip
from transfer.transports.errors import Broken, ProtocolError


def received(stream):
    return eventually(stream.receive)


def test_one_plain_frame(kit):
    stream, far = kit.raw(socket_type=4)
    assert stream.send([plain(b"hello")])
    assert read(far, 39) == Raw(b"hello", 0, 1, socket_type=4).encode()
    assert (stream.sent, stream.sent_bytes, stream.queued, stream.queued_bytes) == (1, 5, 0, 0)


def test_messages_are_counted_from_one(kit):
    stream, far = kit.raw()
    for _ in range(3):
        stream.send([plain(b""), plain(b"")])
    frames = decode(read(far, 6 * 34))
    assert [frame.sequence for frame in frames] == [1, 1, 2, 2, 3, 3]
    stream.send([plain(b"", sequence=1 << 63)])
    assert read_frame(far).sequence == 1 << 63


def test_multipart_has_more_on_all_but_the_last(kit):
    stream, far = kit.raw()
    stream.send([plain(b"a"), plain(b"", flags=ACK), plain(b"c" * 100_000)])
    frames = [read_frame(far) for _ in range(3)]
    assert [frame.flags for frame in frames] == [MORE, ACK | MORE, 0]
    assert [frame.data for frame in frames] == [b"a", b"", b"c" * 100_000]


@pytest.mark.parametrize("size", [0, 8, 5_000, 70_000])
@pytest.mark.parametrize(("flags", "meta"), [(TENSOR, META), (TENSOR | EXTENDED, EXTENDED_META)])
def test_tensor_topic_and_checksum(kit, flags, meta, size):
    stream, far = kit.raw()
    data = bytes(range(256)) * 300
    expected = Raw(data[:size], flags | TOPIC | CRC, 1, meta, b"a topic").encode()
    stream.send([plain(data[:size], flags=flags | CRC, meta=meta, topic=b"a topic")])
    assert read(far, len(expected)) == expected


def test_checksum_of_the_whole_stream(kit):
    stream, far = kit.raw(checksum=True)
    stream.send([plain(b"12345", topic=b"")])
    frame = read_frame(far)
    assert frame.flags == TOPIC | CRC and frame.checksum == zlib.crc32(b"12345")
    stream.checksum = False
    stream.send([plain(b"12345")])
    assert read_frame(far).flags == 0


@pytest.mark.parametrize(
    "data",
    [bytearray(b"abcd"), memoryview(b"abcd"), numpy.frombuffer(b"abcd", numpy.uint16), b"abcd"],
    ids=["bytearray", "memoryview", "array", "bytes"],
)
def test_anything_with_a_buffer_is_data(kit, data):
    stream, far = kit.raw()
    stream.send([plain(data)])
    assert read_frame(far).data == b"abcd"


def test_column_major_memory_goes_out_as_it_lies(kit):
    stream, far = kit.raw()
    grid = numpy.asfortranarray(numpy.arange(6, dtype=numpy.uint8).reshape(2, 3))
    stream.send([plain(grid)])
    assert read_frame(far).data == bytes(grid.ravel(order="K"))


def test_what_has_no_flat_memory_is_refused_and_nothing_is_sent(kit):
    stream, far = kit.raw()
    with pytest.raises(TypeError):
        stream.send([plain(b"first"), plain(12)])
    with pytest.raises((BufferError, ValueError)):
        stream.send([plain(numpy.arange(10)[::2])])
    assert (stream.sent, stream.queued) == (0, 0)
    stream.send([plain(b"good")])
    assert read_frame(far).data == b"good"


# --- in ---------------------------------------------------------------------------------------


def test_plain_data_arrives_with_its_header(kit):
    stream, far = kit.raw()
    assert stream.receive() is None
    far.sendall(Raw(b"hello", ACK, 77, socket_type=3).encode())
    [frame] = received(stream)
    assert (frame.data, frame.flags, frame.sequence, frame.socket_type) == (b"hello", ACK, 77, 3)
    assert (frame.topic, frame.meta, frame.more) == (None, None, False)
    assert (stream.received, stream.consumed) == (1, 1)
    assert stream.last_received_ns > 0


def test_an_empty_topic_is_not_no_topic(kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"x", TOPIC).encode() + Raw(b"y", TOPIC, topic=b"t").encode())
    assert received(stream)[0].topic == b""
    assert received(stream)[0].topic == b"t"


@pytest.mark.parametrize("size", [0, 8, 4096, 70_000, 3_000_000])
@pytest.mark.parametrize(("flags", "meta"), [(TENSOR, META), (TENSOR | EXTENDED, EXTENDED_META)])
def test_received_tensors_are_writable(core, kit, flags, meta, size):
    stream, far = kit.raw("tcp")
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    far.setblocking(True)
    raw = memoryview(Raw(data, flags, meta=meta).encode())
    while raw:
        raw = raw[far.send(raw[:100_000]) :]
        if raw:
            assert stream.receive() is None
    [frame] = received(stream)
    assert frame.meta == meta and frame.bytes == data
    assert isinstance(frame.data, core.Lease)
    assert not memoryview(frame.data).readonly


def test_large_plain_data_is_a_lease_and_small_is_bytes(core, kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"s" * 1000).encode())
    assert type(received(stream)[0].data) is bytes
    sender = threading.Thread(target=far.sendall, args=(Raw(b"l" * 1_000_000).encode(),))
    sender.start()
    assert isinstance(received(stream)[0].data, core.Lease)
    sender.join()


def test_multipart_is_assembled(kit):
    stream, far = kit.raw()
    parts = [Raw(b"a", MORE), Raw(b"b" * 70_000, MORE), Raw(b"", MORE, topic=b""), Raw(b"d")]
    for part in parts[:-1]:
        far.sendall(part.encode())
        assert stream.receive() is None
    far.sendall(parts[-1].encode())
    frames = received(stream)
    assert [frame.bytes for frame in frames] == [b"a", b"b" * 70_000, b"", b"d"]
    assert [frame.more for frame in frames] == [True, True, True, False]
    assert stream.received == 1


def test_control_frames_come_alone_and_do_not_count(kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"a").encode() + Raw(b"\x06", CONTROL).encode() + Raw(b"b").encode())
    assert [received(stream)[0].data for _ in range(3)] == [b"a", b"\x06", b"b"]
    assert (stream.received, stream.consumed) == (2, 2)


def test_control_frames_of_ours_do_not_count(kit):
    stream, far = kit.raw(send_high_water=1)
    assert stream.send([plain(b"\x06beat", flags=CONTROL)], force=True)
    frame = read_frame(far)
    assert (frame.flags, frame.data) == (CONTROL, b"\x06beat")
    assert (stream.sent, stream.sent_bytes, stream.queued) == (0, 0, 0)
    stream.send([plain(b"first")])
    assert read_frame(far).sequence == 1


def test_checksums_are_verified(kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"data" * 30_000, TENSOR | TOPIC | CRC, meta=META, topic=b"t").encode())
    assert received(stream)[0].bytes == b"data" * 30_000


def test_compressed_data_is_handed_on_as_it_is(kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"not really", LZ4).encode())
    [frame] = received(stream)
    assert frame.flags == LZ4 and frame.bytes == b"not really"


# --- bad frames -------------------------------------------------------------------------------

BAD = {
    "magic": (Raw(magic=0xDEADBEEF), {"magic"}),
    "version": (Raw(version=2), {"version"}),
    "version zero": (Raw(version=0), {"version"}),
    "data over the limit": (Raw(length=1_000_001), {"too_large"}),
    "data of 2**63": (Raw(length=1 << 63), {"too_large", "length"}),
    "data of 2**64 - 1": (Raw(length=(1 << 64) - 1), {"too_large", "length"}),
    "topic over the limit": (Raw(flags=TOPIC, topic_length=65537), {"topic"}),
    "topic of 2**32 - 1": (Raw(flags=TOPIC, topic_length=(1 << 32) - 1), {"topic"}),
    "topic without its flag": (Raw(topic=b"t"), {"topic"}),
    "extended without tensor": (Raw(flags=EXTENDED, meta=EXTENDED_META), {"flags"}),
    "socket type of nobody": (Raw(socket_type=9), {"flags"}),
    "extended of 0": (Raw(flags=TENSOR | EXTENDED, meta=bytes(4)), {"tensor", "length"}),
    "extended of 15": (Raw(flags=TENSOR | EXTENDED, meta=b"\x0f" + bytes(20)), {"tensor", "length"}),
    "extended of 4 GiB": (Raw(flags=TENSOR | EXTENDED, meta=b"\xff" * 16), {"tensor", "length"}),
    "control over the limit": (Raw(flags=CONTROL, length=65537), {"control"}),
    "control of nothing": (Raw(flags=CONTROL), {"control"}),
    "control with more": (Raw(b"\1", CONTROL | MORE), {"control"}),
    "control with topic": (Raw(b"\1", CONTROL | TOPIC, topic=b"t"), {"control"}),
    "control with tensor": (Raw(b"\1", CONTROL | TENSOR, meta=META), {"control"}),
    "checksum, small": (Raw(b"data", CRC, checksum=1), {"checksum"}),
    "checksum, tensor": (Raw(b"data", CRC | TENSOR, meta=META, checksum=1), {"checksum"}),
    "checksum, large": (Raw(b"data" * 50_000, CRC, checksum=1), {"checksum"}),
    "checksum, empty": (Raw(b"", CRC, checksum=1), {"checksum"}),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_bad_frame_ends_the_stream_after_what_was_good(core, kit, case, before):
    bad, reasons = BAD[case]
    stream, far = kit.raw(max_message=1_000_000)
    far.sendall(Raw(b"good").encode() * before + bad.encode() + bytes(40))
    for _ in range(before):
        assert received(stream)[0].data == b"good"
    with pytest.raises(ProtocolError) as caught:
        received(stream)
    assert caught.value.reason in reasons
    assert stream.broken is not None
    assert kit.pool.in_use <= 2 * 200_000, "nothing may be allocated for what a bad header claims"


def test_the_broken_stream_takes_no_more(kit):
    stream, far = kit.raw()
    far.sendall(Raw(magic=1).encode())
    with pytest.raises(ProtocolError):
        received(stream)
    with pytest.raises(Broken):
        stream.send([plain(b"x")])


def test_the_limit_itself_is_fine_and_may_change(kit):
    stream, far = kit.raw(max_message=1000)
    far.sendall(Raw(b"x" * 1000).encode())
    assert len(received(stream)[0]) == 1000
    stream.max_message = 1001
    far.sendall(Raw(b"x" * 1001).encode())
    assert len(received(stream)[0]) == 1001


@pytest.mark.parametrize("part", [1, 33, 34, 40, 82, 90, 100], ids=lambda n: f"after {n} bytes")
@pytest.mark.parametrize("size", [50, 100_000])
def test_the_end_inside_a_frame(kit, part, size):
    stream, far = kit.raw()
    good = Raw(b"good").encode()
    far.sendall(good + Raw(b"x" * size, TENSOR | TOPIC, meta=META, topic=b"a topic!").encode()[:part])
    far.close()
    assert received(stream)[0].data == b"good"
    with pytest.raises(ProtocolError) as caught:
        received(stream)
    assert caught.value.reason == "truncated"


def test_the_end_between_frames(kit):
    stream, far = kit.raw()
    far.sendall(Raw(b"last").encode())
    far.close()
    assert received(stream)[0].data == b"last"
    for _ in range(2):
        with pytest.raises(Broken):
            received(stream)
    assert stream.broken is not None
