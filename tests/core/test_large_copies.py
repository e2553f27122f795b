"""Payloads that are copied in pieces, while the kernel takes their beginning and others look on."""

from __future__ import annotations

import contextlib
import sys
import threading

import pytest

from tests.core.conftest import BOTH
from tests.core.raw_frames import plain, read_frame
from tests.sockets.helpers import Thread
from transfer.sockets.parts import pour_frame
from transfer.transports.core.copies import owned
from transfer.transports.errors import Again, Broken

carried = BOTH

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


@pytest.mark.parametrize("way", ["stream", "socket at once", "socket"])
def test_what_others_write_is_let_go_when_the_send_ends(kit, way):
    """The flusher may write the end of what a sender copies; the export ends with the sender's call."""
    for _ in range(10):
        stream, far = kit.raw(buffer=65536)
        socket = kit.pusher(stream)
        data = numbered(PIECES)
        reading = Thread(lambda far=far: read_frame(far).data)
        if way == "stream":
            assert stream.send([plain(data)])
        else:
            socket._send_frames([plain(data)], 0 if way == "socket at once" else 5000)
        data.append(1)
        del data[-1]
        assert reading.finish() == data
        socket._close_core()


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


def start(kit):
    """A stream whose kernel is full, so that no byte of what comes next leaves."""
    stream, _ = kit.raw(buffer=4096)
    stream.send([plain(bytes(1_000_000))])
    assert stream.queued == 1
    return stream


@pytest.mark.parametrize("size", [10, 300_000, 5_000_000])
def test_held_memory_that_was_never_sent_is_told_of_when_it_was_copied(kit, size):
    """Whoever hears that his memory is free changes it: what goes to somebody else is what he sent."""
    stream = start(kit)
    data, told = numbered(size), []

    def free(error):
        data[:] = bytes(size)
        told.append(error)

    assert stream.send([plain(data), plain(b"and more")], hold=True, released=free)
    (message,) = stream.take_unsent()
    stream.close()
    kit.flusher.reap()
    assert [type(error) for error in told if size >= 65536] == [Broken] * (size >= 65536)
    assert [bytes(frame[4]) for frame in message] == [bytes(numbered(size)), b"and more"]
    data.append(1)


def test_what_is_taken_back_while_its_sender_waits(kit):
    """The sender's call ends as soon as its message is gone, and the sender goes on writing there."""
    for _ in range(20):
        stream = start(kit)
        socket = kit.pusher(stream)
        data = numbered(3_000_000)

        def send(socket=socket, data=data):
            socket._send_frames([plain(data)], 5000)
            data[:] = bytes(len(data))
            data.append(1)

        sending = Thread(send)
        while stream.queued < 2:
            pass
        (message,) = stream.take_unsent()
        sending.finish()
        assert bytes(message[0][4]) == bytes(numbered(3_000_000))
        stream.close()


def test_many_are_taken_back_in_order(kit):
    stream = start(kit)
    held = [numbered(size) for size in (100, 70_000, 10, 200_000)]
    for number, data in enumerate(held):
        assert stream.send([plain(data)], hold=bool(number % 2))
        assert stream.send([plain(b"%d" % number)])
    kept = [bytes(data) for data in held]
    messages = stream.take_unsent()
    for data in held:
        data[:] = bytes(len(data))
    assert [bytes(message[0][4]) for message in messages] == [
        one for number, data in enumerate(kept) for one in (data, b"%d" % number)
    ]


@pytest.fixture
def alone():
    """A thread keeps the interpreter to itself until it lets it go."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def passes(copy):
    """Whether another thread runs while `copy()` does; it is tried until one was quick enough."""
    turn, back = threading.Semaphore(0), threading.Semaphore(0)
    runs = []

    def run():
        while turn.acquire() and len(runs) < 500:
            runs.append(1)
            back.release()

    other = Thread(run)
    for _ in range(500):
        before = len(runs)
        turn.release()
        copy()
        passed = len(runs) > before
        back.acquire()
        if passed:
            break
    runs.extend([0] * 500)
    turn.release()
    other.finish()
    return passed


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("source", [bytes, bytearray])
def test_others_run_during_a_large_copy(core, source):
    frame = core.Frame(source(4 << 20))
    target = bytearray(4 << 20)
    assert passes(lambda: pour_frame(frame, memoryview(target)))
    assert passes(lambda: pour_frame(frame, memoryview(target)[: 3 << 20]))
    assert passes(lambda: core.copy_into(target, frame.data))
    assert passes(lambda: owned([(0, 0, None, None, memoryview(frame.data)[1:])]))
    small = core.Frame(source(100))
    assert not passes(lambda: pour_frame(small, memoryview(bytearray(100))))


def test_what_is_poured_and_what_is_not(core):
    for size, room in ((10, 10), (10, 4), (200_000, 200_000), (200_000, 70_001), (200_000, 300_000)):
        frame, target = core.Frame(bytes(numbered(size))), bytearray(room)
        assert pour_frame(frame, memoryview(target)) == size
        least = min(size, room)
        assert target == bytes(numbered(size)[:least]) + bytes(room - least)
    with pytest.raises(TypeError):
        pour_frame(core.Frame(bytes(200_000)), memoryview(bytes(200_000)))
    with pytest.raises(BufferError):
        core.copy_into(bytearray(10), bytes(11))
