"""SocketBase, the sending half: round robin, fan-out, waiting for room."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from itertools import pairwise
from socket import IPPROTO_TCP, TCP_INFO

import numpy
import pytest

from tests.core.conftest import BOTH, FANOUT
from tests.core.raw_frames import Raw, decode, eventually, plain, read, read_frame
from transfer.transports.errors import Again, Broken, Closed

carried = BOTH

BIG = 4 << 20


def stuff(socket, stream) -> None:
    """Sends until the socket would block; then its one stream is full."""
    with pytest.raises(Again):
        while True:
            socket._send_frames([plain(b"x" * 20_000)], 0)
    assert stream.queued > 0


def test_round_robin(kit):
    ends = [kit.raw() for _ in range(3)]
    socket = kit.pusher(*(stream for stream, _ in ends))
    for number in range(9):
        assert socket.send(b"%d" % number) is None
    for first, (_, far) in enumerate(ends):
        got = [frame.data for frame in decode(read(far, 3 * 35))]
        assert sorted(got) == got and len(got) == 3
        assert {int(data) % 3 for data in got} == {int(got[0]) % 3}, first
    assert (socket.messages_sent, socket.bytes_sent) == (9, 9)


def test_a_full_stream_is_skipped(kit):
    full, _ = kit.raw(buffer=4096, send_high_water=1)
    free, far = kit.raw()
    socket = kit.pusher(full)
    stuff(socket, full)
    socket._attach(free, True, False)
    for number in range(5):
        assert socket._send_frames([plain(b"%d" % number)], 0) is free
    assert [frame.data for frame in decode(read(far, 5 * 35))] == [b"0", b"1", b"2", b"3", b"4"]


def test_nobody_there(kit):
    socket = kit.pusher()
    with pytest.raises(Again):
        socket.send(b"x", 1)
    socket.send_timeout = 30
    with pytest.raises(Again):
        socket.send(b"x")
    assert socket._writable() is False
    assert socket._wait_writable(10) is False
    assert socket.blocked_ns > 0
    assert socket.messages_sent == 0


def test_a_sender_waits_for_a_peer(kit):
    socket = kit.pusher()
    stream, far = kit.raw()
    timer = threading.Timer(0.05, socket._attach, (stream, True, False))
    timer.start()
    socket.send(b"at last")
    assert read_frame(far).data == b"at last"
    timer.join()


def test_a_sender_waits_for_room(kit):
    stream, far = kit.raw(buffer=4096, send_high_water=2)
    socket = kit.pusher(stream)
    stuff(socket, stream)
    count = stream.sent
    got = []

    def drain() -> None:
        time.sleep(0.05)
        got.extend(read_frame(far).data for _ in range(count + 1))

    reader = threading.Thread(target=drain)
    reader.start()
    socket.send(b"y")
    reader.join()
    assert got[-1] == b"y"
    assert socket.blocked_ns > 0 and stream.blocked_ns > 0


def test_many_senders_wait_and_all_get_through(kit):
    stream, far = kit.raw(buffer=4096, send_high_water=1)
    socket = kit.pusher(stream)
    stuff(socket, stream)
    before = stream.sent
    threads = [threading.Thread(target=socket.send, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    got = [read_frame(far).data for _ in range(before + 8)]
    for thread in threads:
        thread.join()
    assert sorted(got[before:]) == [b"%d" % n for n in range(8)]


def test_a_longer_limit_helps_a_waiting_sender(kit):
    stream, _ = kit.raw(buffer=4096, send_high_water=1)
    socket = kit.pusher(stream)
    stuff(socket, stream)
    thread = threading.Thread(target=socket.send, args=(b"x",))
    thread.start()
    stream.send_high_water = 5
    socket._notify()
    thread.join(10)
    assert not thread.is_alive()


def test_writable(kit):
    stream, far = kit.raw(buffer=4096, send_high_water=1)
    socket = kit.pusher(stream)
    assert socket._writable() and socket._wait_writable(0)
    stuff(socket, stream)
    assert not socket._writable() and not socket._wait_writable(20)
    reader = threading.Thread(target=lambda: [read_frame(far) for _ in range(stream.sent)])
    reader.start()
    assert socket._wait_writable(10_000) is True
    reader.join()


def test_small_messages_may_change_after_send(kit):
    stream, far = kit.raw(buffer=4096)
    socket = kit.pusher(stream)
    socket.send(b"in the way" * 100_000)
    data = bytearray(b"a" * 1000)
    socket.send(data, copy=False)
    socket.send(data)
    data[:] = b"b" * 1000
    data.append(1)
    read_frame(far)
    assert [read_frame(far).data for _ in range(2)] == [b"a" * 1000] * 2


def test_large_messages_may_change_after_a_plain_send(kit):
    stream, far = kit.raw(buffer=4096)
    socket = kit.pusher(stream)
    data = bytearray(b"a" * BIG)
    socket.send(data)
    assert stream.queued == 1, "a peer that does not read delays a send only shortly"
    data[:] = b"b" * BIG
    data.append(1)
    assert read_frame(far).data == b"a" * BIG


def test_large_messages_go_straight_while_the_peer_reads(kit):
    stream, far = kit.raw("tcp")
    socket = kit.pusher(stream)
    data = numpy.arange(BIG, dtype=numpy.uint64)
    got = []
    reader = threading.Thread(target=lambda: got.append(read_frame(far).data))
    reader.start()
    socket.send(data)
    data[:] = 0
    reader.join()
    assert got == [numpy.arange(BIG, dtype=numpy.uint64).tobytes()]


def test_copy_false_holds_large_memory_or_copies_it(kit):
    stream, far = kit.raw(buffer=4096)
    socket = kit.pusher(stream)
    data = bytearray(b"a" * BIG)
    socket.send(data, copy=False)
    if resizable(data):
        data[:] = bytes(BIG)
    assert read_frame(far).data == b"a" * BIG
    eventually(lambda: kit.flusher.reap() or resizable(data))


def resizable(data: bytearray) -> bool:
    try:
        data.append(1)
    except BufferError:
        return False
    return True


def test_a_message_that_was_taken_before_is_not_counted_again(kit):
    stream, _ = kit.raw()
    socket = kit.pusher(stream)
    for again in (False, True, False):
        assert socket._send_frames([plain(b"abc"), plain(b"de")], 0, first=again, again=again) is stream
    assert (stream.sent, socket.messages_sent, socket.bytes_sent) == (3, 2, 10)


def test_send_frames_tells_who_took_it(kit):
    first, far_first = kit.raw()
    second, far_second = kit.raw()
    socket = kit.pusher(first, second)
    for stream, far in ((second, far_second), (second, far_second), (first, far_first)):
        assert socket._send_frames([plain(b"to one"), plain(b"of them")], 0, stream=stream) is stream
        assert [read_frame(far).data for _ in range(2)] == [b"to one", b"of them"]
    assert socket._send_frames([plain(b"any")], 0) in (first, second)


def test_released_through_the_socket(kit):
    stream, _ = kit.raw()
    socket = kit.pusher(stream)
    outcomes = []
    socket._send_frames([plain(bytearray(10))], 0, hold=True, released=outcomes.append)
    eventually(lambda: kit.flusher.reap() or outcomes)
    assert outcomes == [None]


@pytest.mark.parametrize(
    ("flags", "copy", "track"), [(3, True, False), (0, True, True), (0, False, True), (2, True, True)]
)
def test_rare_sends_go_the_general_way(kit, flags, copy, track):
    socket = kit.pusher(kit.raw()[0])
    assert socket.send(b"x", flags, copy=copy, track=track) == "sent in general"
    assert socket.general == [("send", b"x", flags, copy, track)]


def test_parts_go_as_one_message_with_the_last_one(kit):
    stream, far = kit.raw()
    socket = kit.pusher(stream)
    if kit.core.__name__.endswith("pure"):  # Python runs for each part anyway
        assert socket.send(b"a", 2) == "sent in general"
        return
    socket.send(b"a", 2)
    socket.send(b"", 2)
    assert stream.sent == 0
    socket.send(b"c" * 100)
    assert [(raw.data, raw.flags) for raw in map(read_frame, [far] * 3)] == [
        (b"a", 16),
        (b"", 16),
        (b"c" * 100, 0),
    ]
    assert (stream.sent, stream.sent_bytes, socket.messages_sent, socket.bytes_sent) == (1, 101, 1, 101)
    assert socket._unfinished.sending == 0 and socket.general == []


def test_parts_of_several_threads_are_messages_of_their_own(kit):
    if kit.core.__name__.endswith("pure"):
        pytest.skip("the pure core leaves parts to the socket: tests/sockets")
    stream, far = kit.raw()
    socket = kit.pusher(stream)
    socket.send(b"mine", 2)
    other = threading.Thread(target=lambda: [socket.send(b"theirs", 2), socket.send(b"whole")])
    other.start()
    other.join()
    socket.send(b"rest")
    assert [raw.data for raw in map(read_frame, [far] * 4)] == [b"theirs", b"whole", b"mine", b"rest"]


def test_several_parts_at_once(kit):
    if kit.core.__name__.endswith("pure"):
        pytest.skip("the pure core leaves parts to the socket: tests/sockets")
    stream, far = kit.raw()
    socket = kit.pusher(stream)
    socket.send_multipart([b"a", b"b" * 1000, b""])
    socket.send_multipart([b"alone"])
    assert [(raw.data, raw.flags) for raw in map(read_frame, [far] * 4)] == [
        (b"a", 16),
        (b"b" * 1000, 16),
        (b"", 0),
        (b"alone", 0),
    ]
    for parts in ([], (b"a",), [b"a", bytearray(2)], [b"x" * socket.copy_threshold]):
        assert socket.send_multipart(parts) == "sent in general"


def test_the_general_way_by_wish_and_by_mode(kit):
    socket = kit.pusher(kit.raw()[0])
    socket._general_send = True
    assert socket.send(b"x") == "sent in general"
    assert kit.socket(send_mode=0).send(b"x") == "sent in general"
    socket._general_send = False
    assert socket.send(b"x") is None


def test_what_is_no_message(kit):
    socket = kit.pusher(kit.raw()[0])
    with pytest.raises(TypeError):
        socket.send("text")
    with pytest.raises(TypeError):
        socket.send(12)
    assert socket.messages_sent == 0


def test_a_received_frame_can_be_sent_on(core, kit):
    stream, far = kit.raw()
    socket = kit.pusher(stream)
    socket.send(core.Frame(b"from elsewhere"))
    assert read_frame(far).data == b"from elsewhere"


# --- fan-out ----------------------------------------------------------------------------------


def publisher(kit, *subscriptions: bytes, **options):
    socket = kit.socket(send_mode=FANOUT)
    ends = []
    for prefix in subscriptions:
        stream, far = kit.raw(**options)
        stream.subscribe(prefix)
        socket._attach(stream, True, False)
        ends.append((stream, far))
    return socket, ends


def test_fan_out_by_prefix(kit):
    socket, ends = publisher(kit, b"", b"a", b"ab", b"x")
    for data in (b"abc", b"a", b"b"):
        socket.send(data)
    socket.send(b"end")
    socket.send(b"x end")
    assert [f.data for f in decode(read(ends[0][1], 34 * 5 + 13))] == [b"abc", b"a", b"b", b"end", b"x end"]
    assert [f.data for f in decode(read(ends[1][1], 34 * 2 + 4))] == [b"abc", b"a"]
    assert read_frame(ends[2][1]).data == b"abc"
    assert read_frame(ends[3][1]).data == b"x end"
    assert (socket.messages_sent, socket.dropped_no_peer) == (9, 0), "one for each subscriber"


def test_fan_out_counts_who_took_it(kit):
    socket, _ = publisher(kit, b"a", b"a", b"b")
    assert socket._send_frames([plain(b"abc")], 0) == 2
    assert socket._send_frames([plain(b"xyz")], 0) == 0
    assert socket._send_frames([plain(b"xyz")], 0, topic=b"b") == 1
    assert socket._send_frames([plain(b"xyz", topic=b"a")], 0) == 2
    assert socket._send_frames([plain(bytearray(b"abc"))], 0) == 2
    assert socket.dropped_no_peer == 1


def test_nobody_subscribed(kit):
    socket, _ = publisher(kit)
    socket.send(b"x")
    assert socket.dropped_no_peer == 1
    assert socket._writable() is True


def test_a_slow_subscriber_loses_and_others_do_not(kit):
    socket, [(slow, _)] = publisher(kit, b"", buffer=4096, send_high_water=3)
    fast, far = kit.raw()
    fast.subscribe(b"")
    socket._attach(fast, True, False)
    for _ in range(200):
        socket.send(b"y" * 1000)
        read_frame(far)
    assert slow.dropped > 0 and slow.sent + slow.dropped == 200
    assert fast.dropped == 0 and fast.sent == 200


def test_fan_out_of_one_large_object(kit):
    socket, ends = publisher(kit, b"", b"", b"", buffer=4096)
    data = bytearray(b"z" * 1_000_000)
    socket.send(data)
    data[:] = bytes(1_000_000)
    for _, far in ends:
        assert read_frame(far).data == b"z" * 1_000_000


def test_released_once_after_all_have_it(kit):
    socket, ends = publisher(kit, b"", b"", b"x", buffer=4096)
    outcomes = []
    data = bytearray(b"a" * BIG)
    assert socket._send_frames([plain(data)], 0, topic=b"a", hold=True, released=outcomes.append) == 2
    assert len(read_frame(ends[0][1]).data) == BIG
    eventually(lambda: ends[0][0].queued == 0)
    kit.flusher.reap()
    assert outcomes == []
    assert len(read_frame(ends[1][1]).data) == BIG
    eventually(lambda: kit.flusher.reap() or outcomes)
    assert outcomes == [None]


# --- peers that go ----------------------------------------------------------------------------


def test_a_lost_peer_is_told_once_and_others_go_on(kit):
    gone, far_gone = kit.raw()
    alive, far = kit.raw()
    socket = kit.pusher(gone, alive)
    far_gone.close()
    for number in range(50):
        socket.send(b"%02d" % number)
    assert [(stream, type(error)) for stream, error in socket.losses] == [(gone, Broken)]
    assert socket._streams() == [alive]
    assert gone.fd >= 0, "closing it is the owner's"
    arrived = [read_frame(far).data]
    while arrived[-1] != b"49":
        arrived.append(read_frame(far).data)
    assert len(arrived) >= 49, "at most what was on its way to the lost peer is lost"


def test_a_message_that_meets_the_end_is_in_one_place(kit):
    """With TLS at most one: what is encrypted is not taken back, and counts as written."""
    gone, far_gone = kit.raw()
    alive, far = kit.raw()
    socket = kit.pusher(gone, alive)
    far_gone.close()
    time.sleep(0.001)  # a pause, so that each goes out at once
    for number in range(6):
        socket.send(b"%d" % number)
        time.sleep(0.001)
    kept = [frames[0][4] for frames in gone.take_unsent()]
    arrived = []
    while select.select([far], [], [], 0.5)[0]:
        arrived.append(read_frame(far).data)
    assert sorted([*kept, *arrived]) == [b"0", b"1", b"2", b"3", b"4", b"5"][kit.pki is not None :]


def test_a_lost_peer_asked_for_by_name(kit):
    gone, far = kit.raw()
    socket = kit.pusher(gone)
    far.close()
    with pytest.raises(Broken):
        for _ in range(3):
            socket._send_frames([plain(b"x")], 0, stream=gone)
    assert len(socket.losses) <= 1, "the exception reported it"
    assert gone.broken is not None


def test_detach(kit):
    one, far = kit.raw()
    other, _ = kit.raw()
    socket = kit.pusher(one, other)
    socket._detach(other)
    socket._detach(other)
    for _ in range(4):
        socket.send(b"x")
    assert len(decode(read(far, 4 * 35))) == 4
    assert socket._streams() == [one] and not socket.losses
    other.close()


# --- the end ----------------------------------------------------------------------------------


def test_closing_wakes_senders(kit):
    socket = kit.pusher()
    raised = []

    def work() -> None:
        try:
            socket.send(b"x")
        except Closed as error:
            raised.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    socket._close_core()
    for thread in threads:
        thread.join(10)
    assert len(raised) == 3


def test_a_closed_socket_says_so(kit):
    stream, _ = kit.raw()
    socket = kit.pusher(stream)
    socket._close_core()
    socket._close_core()
    assert socket.closed is True
    for call in (
        lambda: socket.send(b"x"),
        lambda: socket._send_frames([plain(b"x")], 0),
        lambda: socket._wait_writable(0),
        lambda: socket._attach(stream, True, False),
    ):
        with pytest.raises(Closed):
            call()
    assert socket._writable() is False


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_threads_send_on_one_socket_without_interleaving(kit, kind):
    stream, far = kit.raw(kind, buffer=8192, send_high_water=20)
    socket = kit.pusher(stream)
    count, threads = 40, 4

    def work(mark: int) -> None:
        for number in range(count):
            if number % 2:
                socket.send(bytearray([mark]) * (number * 5003 % 150_000))
            else:
                socket._send_frames([plain(bytes([mark])), plain(bytes([mark]) * number)], 10_000)

    workers = [threading.Thread(target=work, args=(mark,)) for mark in range(threads)]
    for worker in workers:
        worker.start()
    seen = [0] * threads
    while sum(seen) < count * threads:
        first: Raw = read_frame(far)
        mark = first.data[0]
        number = seen[mark]
        if number % 2:
            assert first.data == bytes([mark]) * (number * 5003 % 150_000)
        else:
            assert read_frame(far).data == bytes([mark]) * number
        seen[mark] += 1
    for worker in workers:
        worker.join()
    eventually(lambda: stream.queued == 0)


@pytest.mark.parametrize("size", [10, 5000, 1 << 20])
def test_each_sender_is_told_the_number_of_his_message(kit, size):
    """Also while others send to the same stream, and large ones let them in between."""
    near, far = kit.raw("tcp")
    socket = kit.pusher(near)
    outcomes = {}

    def send(name):
        for number in range(count):
            said = b"%d %d " % (name, number)

            def taken(stream, number, said=said):
                assert stream is near and outcomes.setdefault(number, said) is said

            socket._send_frames([plain(said + bytes(size))], 20_000, taken=taken)

    count = 20 if size > 10_000 else 200
    threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    arrived = [read_frame(far) for _ in range(3 * count)]
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == list(range(1, 3 * count + 1))
    for frame in arrived:
        assert frame.data.startswith(outcomes[frame.sequence])


def test_nobody_is_told_of_a_message_that_was_not_taken(kit):
    near, _ = kit.raw(send_high_water=1)
    socket = kit.pusher(near)
    outcomes = []
    with pytest.raises(Again):
        for _ in range(1000):
            socket._send_frames([plain(bytes(100_000))], 0, taken=lambda *what: outcomes.append(what))
    assert outcomes == [(near, number) for number in range(1, near.sent + 1)]


def test_every_message_is_reported_although_handlers_raise(kit):
    """A handler raises at the beginning of a call, or inside of it: each is called until it returns."""
    if kit.core.__name__.endswith("pure"):
        pytest.skip("the pure core reports the others at its next call, and that one not again")
    stream, far = kit.raw()
    called: list[int] = []

    class Rung(Exception):
        pass

    def report(number):
        def released(error):
            called.append(number)
            if called.count(number) == 1 and number in (0, 2):
                raise Rung

        return released

    memory = [bytearray(1_000_000) for _ in range(4)]
    reader = threading.Thread(target=lambda: read(far, 4 * (32 + 1_000_000)))
    for number, data in enumerate(memory):
        stream.send([(0, 0, None, None, data)], force=True, hold=True, released=report(number))
    reader.start()
    interrupted = 0

    def reported():
        nonlocal interrupted
        try:
            kit.flusher.reap()
            stream.flush()
            time.sleep(0)  # it is raised as soon as Python code runs
        except Rung:
            interrupted += 1
        return len(set(called)) == 4

    eventually(reported)
    reader.join(10)
    assert (
        interrupted and set(called) == {0, 1, 2, 3} and [called.count(number) for number in (1, 3)] == [1, 1]
    )


def test_messages_to_many_in_turn_share_their_writes(kit):
    """Each connection pauses while others have their turns, and yet not every message is a system call."""
    if kit.core.__name__.endswith("pure") or "TSAN_OPTIONS" in os.environ:
        pytest.skip("the pure core, as any under ThreadSanitizer, is slower than such a pause")
    ends = [kit.raw("tcp") for _ in range(64)]
    socket = kit.pusher(*(stream for stream, _ in ends))
    rounds, counts = 100, [0]
    for _ in range(4):  # a processor that others need makes pauses of its own
        for number in range(rounds * len(ends)):
            socket.send(b"%05d" % number)
        for first, (_, far) in enumerate(ends):
            got = [int(frame.data) for frame in decode(read(far, rounds * (5 + 34)))]
            assert got == list(range(first, rounds * len(ends), len(ends)))
        counts.append(sum(segments_of(far) for _, far in ends))
    assert min(b - a for a, b in pairwise(counts)) < rounds * len(ends) // 4


def segments_of(far) -> int:
    """Segments with data that have arrived: each write makes one, at least. Linux' struct tcp_info."""
    info = far.getsockopt(IPPROTO_TCP, TCP_INFO, 256)
    return int.from_bytes(info[152:156], sys.byteorder)
