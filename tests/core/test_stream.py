"""A stream's out-queue: limits, short writes, memory, what is left at the end."""

from __future__ import annotations

import os
import select
import threading
import time

import numpy
import pytest

from tests.core.conftest import BOTH, connected
from tests.core.raw_frames import (
    CONTROL,
    CRC,
    EXTENDED,
    EXTENDED_META,
    LZ4,
    META,
    TENSOR,
    TOPIC,
    Raw,
    decode,
    eventually,
    plain,
    read,
    read_frame,
)
from transfer.transports.errors import Broken, Closed, NotSupported

carried = BOTH

BIG = 4 << 20  # more than any kernel buffer here takes


def fill(stream, size: int = 10_000) -> int:
    """Sends until the stream is full; how many messages it took in all."""
    while stream.send([plain(b"x" * size)]):
        pass
    return stream.sent


# --- when it is written -----------------------------------------------------------------------


def test_a_lone_message_goes_out_at_once(kit):
    stream, far = kit.raw()
    far.setblocking(False)
    stream.send([plain(b"alone")])
    assert read_frame(far).data == b"alone"
    assert stream.queued == 0 and stream.last_sent_ns > 0


def test_a_burst_needs_no_flush(kit):
    stream, far = kit.raw()
    for _ in range(100):
        stream.send([plain(b"burst")])
    assert len(decode(read(far, 100 * 39))) == 100
    eventually(lambda: stream.queued == stream.queued_bytes == 0)


def test_flush_writes_what_was_gathered(kit):
    stream, far = kit.raw()
    for _ in range(100):
        stream.send([plain(b"burst")])
    assert stream.flush() is True
    assert stream.queued == 0
    assert len(read(far, 100 * 39)) == 3900


def test_flush_says_when_the_kernel_is_full(kit):
    stream, far = kit.raw()
    stream.send([plain(b"x" * BIG)])
    assert stream.flush() is False
    assert read(far, 34 + BIG)[34:] == b"x" * BIG
    eventually(stream.flush)


def test_the_flusher_drains_a_full_kernel_buffer(kit):
    stream, far = kit.raw("tcp", buffer=4096)
    messages = [bytes([number]) * (number * 7919 % 20_000) for number in range(100)]
    for message in messages:
        assert stream.send([plain(message)])
    assert stream.queued > 0
    for message in messages:
        assert read_frame(far).data == message
    eventually(lambda: stream.queued == stream.queued_bytes == 0)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_short_writes_of_large_and_small(kit, kind):
    near, far = kit.pair(kind, buffer=2304)
    sent = [
        [b"a" * 10, bytearray(b"b" * 200_000), b"", b"c" * 70_000],
        [numpy.full(50_000, 7, numpy.uint8)],
        *([b"%d" % number] for number in range(500)),
    ]
    for parts in sent:
        assert near.send([plain(part) for part in parts])
    got = []
    while len(got) < len(sent):
        message = far.receive()
        if message is not None:
            got.append([frame.bytes for frame in message])
    assert got == [[bytes(part) for part in parts] for parts in sent]


def test_a_message_of_very_many_frames(kit):
    near, far = kit.pair("tcp", buffer=4096)
    parts = [b"%d" % number * (1 + number % 5000) for number in range(0, 3000, 2)]
    assert near.send([plain(part) for part in parts])
    assert [frame.bytes for frame in eventually(far.receive)] == parts


# --- limits -----------------------------------------------------------------------------------


def test_high_water_in_messages(kit):
    stream, _ = kit.raw(buffer=4096, send_high_water=10, send_high_water_bytes=0)
    fill(stream)
    assert stream.queued == 10
    sent = stream.sent
    assert not stream.send([plain(b"x")])
    assert (stream.sent, stream.queued) == (sent, 10)


def test_high_water_in_bytes(kit):
    stream, _ = kit.raw(buffer=4096, send_high_water=0, send_high_water_bytes=100_000)
    fill(stream, 9_000)
    assert 91_000 < stream.queued_bytes <= 100_000
    assert not stream.send([plain(b"x" * 9_000)])


def test_one_message_is_always_taken(kit):
    stream, far = kit.raw(buffer=4096, send_high_water=1, send_high_water_bytes=1000)
    assert stream.send([plain(b"x" * 1_000_000)])
    assert not stream.send([plain(b"")])
    assert len(read_frame(far).data) == 1_000_000
    eventually(lambda: stream.queued == 0)
    assert stream.send([plain(b"y" * 2_000_000)])
    assert len(read_frame(far).data) == 2_000_000


def test_limits_apply_at_once(kit):
    stream, _ = kit.raw(buffer=4096, send_high_water=5)
    fill(stream)
    stream.send_high_water = 8
    fill(stream)
    assert stream.queued == 8
    stream.send_high_water = 0
    stream.send_high_water_bytes = 0
    for _ in range(3000):
        assert stream.send([plain(b"more")])


def test_force_ignores_the_limits(kit):
    stream, far = kit.raw(buffer=4096, send_high_water=1)
    taken = fill(stream)
    assert stream.send([plain(b"\x06", flags=CONTROL)], force=True)
    assert stream.queued == 1, "a control frame is no message"
    for _ in range(taken):
        read_frame(far)
    assert read_frame(far).flags == CONTROL


def test_a_multipart_message_counts_once(kit):
    stream, _ = kit.raw(buffer=4096)
    stream.send([plain(b"x" * BIG)])
    stream.send([plain(b"abc"), plain(b"de"), plain(b"")])
    assert (stream.sent, stream.queued) == (2, 2)
    assert stream.sent_bytes == BIG + 5
    assert 5 < stream.queued_bytes <= BIG + 5, "what the kernel has may count or not"


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 5_000, 300_000])
def test_mutable_memory_is_copied_unless_held(kit, size):
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(b"in the way" * 100_000)])
    data = bytearray(b"a" * size)
    assert stream.send([plain(data)])
    data[:] = b"b" * size
    data.append(1)
    read_frame(far)
    assert read_frame(far).data == b"a" * size


def test_held_memory_stays_exported_until_it_is_written(kit):
    stream, far = kit.raw(buffer=4096)
    data = bytearray(b"a" * BIG)
    outcomes = []
    assert stream.send([plain(data)], hold=True, released=outcomes.append)
    with pytest.raises(BufferError):
        data.append(1)
    assert not outcomes
    assert len(read_frame(far).data) == BIG
    readable, _, _ = select.select([kit.flusher], [], [], 10)
    assert readable, "the flusher's descriptor says when there is something to reap"
    kit.flusher.reap()
    assert outcomes == [None]
    data.append(1)
    assert select.select([kit.flusher], [], [], 0)[0] == []


def test_released_at_once_when_all_was_written(kit):
    stream, _ = kit.raw()
    outcomes = []
    stream.send([plain(bytearray(b"small"))], hold=True, released=outcomes.append)
    assert outcomes == [None]


def test_released_once_for_a_message_of_many_frames(kit):
    stream, far = kit.raw(buffer=4096)
    outcomes = []
    frames = [plain(bytearray(200_000)) for _ in range(3)]
    stream.send(frames, hold=True, released=outcomes.append)
    for _ in frames:
        read_frame(far)
    eventually(lambda: kit.flusher.reap() or outcomes)
    kit.flusher.reap()
    stream.close()
    kit.flusher.reap()
    assert outcomes == [None]


def test_released_with_the_reason_when_the_peer_goes(kit):
    stream, far = kit.raw(buffer=4096)
    outcomes = []
    data = bytearray(BIG)
    stream.send([plain(data)], hold=True, released=outcomes.append)
    far.close()
    eventually(lambda: stream.flush() or stream.broken)
    stream.close()
    kit.flusher.reap()
    assert len(outcomes) == 1 and isinstance(outcomes[0], BaseException)
    data.append(1)


def test_released_by_close(kit):
    stream, _ = kit.raw(buffer=4096)
    outcomes = []
    data = bytearray(BIG)
    stream.send([plain(data)], hold=True, released=outcomes.append)
    stream.send([plain(data)], hold=True, released=outcomes.append)
    assert stream.close() == 2
    kit.flusher.reap()
    assert len(outcomes) == 2 and all(isinstance(error, BaseException) for error in outcomes)
    data.append(1)


def test_a_refused_message_is_not_referenced(kit):
    stream, _ = kit.raw(buffer=4096, send_high_water=1)
    fill(stream)
    outcomes, data = [], bytearray(BIG)
    assert not stream.send([plain(data)], hold=True, released=outcomes.append)
    data.append(1)
    stream.close()
    kit.flusher.reap()
    assert not outcomes


# --- the end ----------------------------------------------------------------------------------


def test_close_says_what_is_lost_and_is_idempotent(kit):
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(b"x" * BIG)])
    stream.send([plain(b"\x06", flags=CONTROL)], force=True)
    stream.send([plain(b"y"), plain(b"z")])
    fd = stream.fd
    assert fd == stream.fileno() >= 0
    assert stream.close() == 2
    assert stream.close() == 0
    assert stream.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises((Broken, Closed)):
        stream.send([plain(b"late")])
    while far.recv(1 << 20):
        pass


def test_close_of_a_stream_with_nothing_queued(kit):
    stream, far = kit.raw()
    stream.send([plain(b"x")])
    stream.flush()
    assert stream.close() == 0
    assert read_frame(far).data == b"x"
    assert far.recv(1) == b""


def test_sending_to_a_peer_that_is_gone(kit):
    stream, far = kit.raw()
    far.close()
    with pytest.raises(Broken):
        for _ in range(1000):
            stream.send([plain(b"x" * 100_000)])
    assert isinstance(stream.broken, BaseException)
    with pytest.raises(Broken):
        stream.send([plain(b"again")])


def test_take_unsent_gives_back_what_was_not_begun(kit):
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(b"x" * BIG)])
    mutable = bytearray(b"mutable" * 1000)
    stream.send([plain(mutable), plain(b"second", topic=b"t")])
    mutable[:] = bytes(len(mutable))
    stream.send([plain(b"\x06", flags=CONTROL)], force=True)
    stream.send([plain(b"third", sequence=99)])
    read(far, 1000)
    far.close()
    with pytest.raises(Broken):
        eventually(lambda: stream.send([plain(b"never")]) and None)
    unsent = stream.take_unsent()
    assert [[bytes(frame[4]) for frame in message] for message in unsent[:2]] == [
        [b"mutable" * 1000, b"second"],
        [b"third"],
    ]
    assert unsent[0][1][2] == b"t"
    assert unsent[1][0][1] == 99
    assert all(bytes(message[0][4]) == b"never" for message in unsent[2:])
    assert stream.take_unsent() == []
    assert stream.close() == 0


def test_user_memory_is_free_when_its_message_was_taken_back(kit):
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(b"x" * BIG)])
    data = bytearray(200_000)
    outcomes = []
    stream.send([plain(data)], hold=True, released=outcomes.append)
    with pytest.raises(BufferError):
        data.append(1)
    far.close()
    eventually(lambda: stream.flush() or stream.broken)
    unsent = stream.take_unsent()
    stream.close()
    kit.flusher.reap()
    assert len(outcomes) == 1
    data[:] = b"\1" * len(data)
    data.append(1)
    other, far = kit.raw()
    other.send(unsent[0], hold=True)
    assert read_frame(far).data == bytes(200_000)
    eventually(other.flush)
    other.close()


def test_frames_queue_until_there_is_a_descriptor(kit):
    stream = kit.stream(-1, send_high_water=3)
    assert stream.fd == -1
    for number in range(3):
        assert stream.send([plain(b"%d" % number)])
    assert not stream.send([plain(b"full")])
    assert stream.flush() is False
    assert stream.queued == 3
    near, far = connected()
    with far:
        near.setblocking(False)
        stream.open(near.detach())
        assert [read_frame(far).data for _ in range(3)] == [b"0", b"1", b"2"]
        far.sendall(Raw(b"answer").encode())
        assert eventually(stream.receive)[0].data == b"answer"


def test_take_unsent_of_a_stream_without_a_descriptor(kit):
    stream = kit.stream(-1)
    stream.send([plain(b"a")])
    stream.send([plain(b"b")])
    assert [message[0][4] for message in stream.take_unsent()] == [b"a", b"b"]
    assert stream.queued == 0
    stream.send([plain(b"c")])
    assert stream.close() == 1


def test_subscriptions_are_a_multiset_of_prefixes(kit):
    stream = kit.stream(-1)
    assert stream.matches(b"anything") is False
    stream.subscribe(b"ab")
    stream.subscribe(b"ab")
    stream.subscribe(b"x")
    assert sorted(stream.subscriptions) == [b"ab", b"x"]
    assert stream.matches(b"abc") and stream.matches(b"ab") and not stream.matches(b"a")
    assert stream.unsubscribe(b"ab") is True
    assert stream.matches(b"abc")
    assert stream.unsubscribe(b"ab") is True
    assert not stream.matches(b"abc")
    assert stream.unsubscribe(b"ab") is False
    stream.subscribe(b"")
    assert stream.matches(b"")


def test_threads_send_on_one_stream_without_interleaving(kit):
    stream, far = kit.raw("tcp", buffer=8192, send_high_water=0, send_high_water_bytes=0)
    count, threads = 60, 4

    def work(mark: int) -> None:
        for number in range(count):
            stream.send([plain(bytes([mark]) * (number * 997 % 9000)), plain(bytes([mark]) * 3)])

    workers = [threading.Thread(target=work, args=(mark,)) for mark in range(threads)]
    for worker in workers:
        worker.start()
    seen = [0] * threads
    for sequence in range(1, count * threads + 1):
        first, second = read_frame(far), read_frame(far)
        mark = second.data[0]
        assert (first.sequence, second.sequence) == (sequence, sequence)
        assert first.data == bytes([mark]) * (seen[mark] * 997 % 9000) and second.data == bytes([mark]) * 3
        seen[mark] += 1
    for worker in workers:
        worker.join()
    assert seen == [count] * threads


# --- credits ----------------------------------------------------------------------------------


def credit(frame: Raw) -> int:
    assert frame.flags == CONTROL and len(frame.data) == 9 and frame.data[0] == 5
    return int.from_bytes(frame.data[1:], "little")


def test_credits_say_what_was_consumed(kit):
    stream, far = kit.raw(credits=True)
    socket = kit.puller(stream)
    far.sendall(Raw(b"x").encode() * 10 + Raw(b"\x06", CONTROL).encode())
    for _ in range(10):
        socket.recv()
    seen = 0
    while seen < 10:
        value = credit(read_frame(far))
        assert seen < value <= 10
        seen = value
    assert stream.sent == 0


def test_credits_are_rare(kit):
    stream, far = kit.raw(credits=True)
    socket = kit.puller(stream)
    for _ in range(2000):
        far.sendall(Raw(b"x").encode())
        socket.recv()
    frames = []
    while not frames or credit(frames[-1]) < 2000:
        frames.append(read_frame(far))
    values = [credit(frame) for frame in frames]
    assert values == sorted(set(values))
    assert len(values) < 500


def test_no_credits_unless_asked_for(kit):
    stream, far = kit.raw(credits=False)
    socket = kit.puller(stream)
    far.sendall(Raw(b"x").encode())
    socket.recv()
    far.settimeout(0.1)
    with pytest.raises(TimeoutError):
        far.recv(1)
    stream.credits = True
    far.sendall(Raw(b"x").encode())
    socket.recv()
    assert credit(read_frame(far)) == 2


def test_credits_wait_behind_no_output(kit):
    stream, far = kit.raw(buffer=4096, credits=True)
    socket = kit.puller(stream)
    stream.send([plain(b"x" * BIG)])
    far.sendall(Raw(b"x").encode())
    socket.recv()
    assert len(read_frame(far).data) == BIG
    assert credit(read_frame(far)) == 1


def test_a_steady_output_keeps_no_credit_back(kit):
    stream, far = kit.raw(buffer=4096, credits=True)
    socket = kit.puller(stream)
    for consumed in 1, 2, 3:
        far.sendall(Raw(b"x").encode())
        socket.recv()
        for _ in range(20):
            while stream.queued_bytes < 2 * BIG:  # so that the queue is never empty
                stream.send([plain(b"x" * BIG)], force=True)
            frame = read_frame(far)
            if frame.flags & CONTROL:
                break
        assert credit(frame) == consumed


def test_threads_receive_of_their_streams_at_once(kit):
    """What a core lends for reading is nobody's twice."""
    count, size = 3000, 2000
    pairs = [kit.pair() for _ in range(3)]
    wrong = []

    def send(near, letter):
        for number in range(count):
            message = [(0, 0, None, None, number.to_bytes(4, "big") + letter * size)]
            while not near.send(message):
                time.sleep(0)
        while not near.flush():
            time.sleep(0)

    def receive(far, letter):
        for number in range(count):
            while (frames := far.receive()) is None:
                time.sleep(0)
            if frames[0].bytes != number.to_bytes(4, "big") + letter * size:
                wrong.append((letter, number))
                return

    threads = []
    for (near, far), letter in zip(pairs, (b"a", b"b", b"c"), strict=True):
        threads += [threading.Thread(target=send, args=(near, letter), daemon=True)]
        threads += [threading.Thread(target=receive, args=(far, letter), daemon=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not wrong


def test_threads_receive_of_one_stream(kit):
    """Each message goes to one of them, whole."""
    count, size = 300, 100_000
    near, far = kit.pair()
    got, wrong = [], []

    def receive():
        while len(got) < count:
            if (frames := far.receive()) is None:
                time.sleep(0)
                continue
            data = frames[0].bytes
            got.append(data[:4])
            if data != data[:4] * (size // 4):
                wrong.append(data[:4])

    threads = [threading.Thread(target=receive, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(count):
        while not near.send([(0, 0, None, None, number.to_bytes(4, "big") * (size // 4))]):
            time.sleep(0)
    while not near.flush():
        time.sleep(0)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(got) == [number.to_bytes(4, "big") for number in range(count)]
    assert not wrong


def test_a_plain_peer_gets_flags_0_to_2_only(kit):
    stream, far = kit.raw()
    stream.plain = True
    stream.checksum = True
    for frames in (
        [plain(b"a"), plain(b"b")],
        [(EXTENDED | TENSOR, 0, None, EXTENDED_META, b"x")],
        [(LZ4, 0, None, None, b"x")],
        [(CRC, 0, None, None, b"x")],
    ):
        with pytest.raises(NotSupported, match="sent no hello"):
            stream.send(frames)
    stream.send([(TENSOR, 0, b"t", META, bytes(4))])
    [frame] = decode(read(far, 34 + 48 + 1 + 4))
    assert (frame.flags, frame.topic, frame.data, frame.checksum) == (TENSOR | TOPIC, b"t", bytes(4), 0)


@pytest.mark.parametrize(("size", "copied"), [((64 << 10) - 1, True), (64 << 10, False)])
def test_from_64_kib_on_memory_is_not_copied(kit, size, copied):
    if copied and kit.core.__name__.endswith("pure"):
        pytest.skip("the twin keeps whatever may be kept")
    stream, far = kit.raw(buffer=4096)
    stream.send([plain(bytes(BIG))])  # the next one has to wait
    data = bytearray(size)
    assert stream.send([plain(data)], hold=True)
    if copied:
        data.append(1)
    else:
        with pytest.raises(BufferError):
            data.append(1)
    assert [len(read_frame(far).data) for _ in range(2)] == [BIG, size]
