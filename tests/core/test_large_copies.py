"""Payloads that are copied in pieces, while the kernel takes their beginning and others look on."""

from __future__ import annotations

import contextlib
import threading

import pytest

from tests.core.raw import plain, read_frame
from tests.sockets.helpers import Thread
from transports.errors import Again

PIECES = 24 << 20


def numbered(nbytes: int) -> bytearray:
    """Bytes of which no two kilobytes are the same."""
    return bytearray(b"".join(b"%08d" % i * 128 for i in range(nbytes // 1024 + 1))[:nbytes])


@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
def test_a_copy_is_what_was_sent(kit, when):
    stream, far = kit.raw(buffer=65536)
    data, expected = numbered(PIECES), bytes(numbered(PIECES))
    read = threading.Event()
    reading = Thread(lambda: (read.wait(10), read_frame(far).data)[1])
    if when == "meanwhile":
        read.set()
    assert stream.send([plain(data)])
    data[:] = bytes(len(data))  # it is ours again
    data.append(1)
    read.set()
    assert reading.finish() == expected
    assert (stream.queued, stream.queued_bytes) == (0, 0)


def test_copies_of_several_frames(kit):
    stream, far = kit.raw(buffer=4096)
    payloads = [numbered(size) for size in (10, 3_000_000, 70_000, 0, 2_500_001)]
    expected = [bytes(data) for data in payloads]
    stream.send([plain(bytes(100_000))])
    assert stream.send([plain(data) for data in (*payloads, b"x" * 200_000)])
    for data in payloads:
        data[:] = b"!" * len(data)
    read_frame(far)
    assert [read_frame(far).data for _ in range(6)] == [*expected, b"x" * 200_000]


@pytest.mark.parametrize("size", [10, 300_000, 5_000_000])
def test_a_copy_that_was_never_begun_is_taken_back(kit, size):
    """It is as it was sent, and goes to somebody else."""
    stream, _ = kit.raw(buffer=4096)
    stream.send([plain(bytes(1_000_000))])
    data = numbered(size)
    stream.send([plain(data), plain(b"and more")])
    data[:] = bytes(size)
    (message,) = stream.take_unsent()
    assert bytes(message[0][4]) == bytes(numbered(size))
    other, far = kit.raw()
    sending = Thread(other.send, message)
    assert read_frame(far).data == bytes(numbered(size))
    assert read_frame(far).data == b"and more"
    assert sending.finish()


def test_a_connection_that_ends_during_the_copy(kit):
    """The copy is given up with the queue it was for; the memory is the caller's again."""

    def end(stream, far):
        far.close()
        stream.take_unsent()
        stream.close()

    for _ in range(5):
        stream, far = kit.raw(buffer=4096)
        socket = kit.pusher(stream)
        data = bytearray(64 << 20)
        ending = Thread(end, stream, far)
        with contextlib.suppress(Again):  # the end came first
            socket._send_frames([plain(data)], 1000)
        ending.finish()
        data.append(1)
