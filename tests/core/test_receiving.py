"""SocketBase, the receiving half: fairness, waiting, the descriptor, sinks."""

from __future__ import annotations

import select
import threading
import time

import numpy
import pytest

from tests.core.conftest import BOTH, FILTERED
from tests.core.raw_frames import CONTROL, CRC, LZ4, META, MORE, TENSOR, TOPIC, Raw
from transfer.transports.errors import Again, Broken, Closed, ProtocolError

carried = BOTH


def readable(socket, timeout: float = 0.0) -> bool:
    return bool(select.select([socket], [], [], timeout)[0])


def test_recv_gives_bytes(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    for size in (0, 5, 5_000, 65_536, 300_000):
        far.settimeout(10)
        sender = threading.Thread(target=far.sendall, args=(Raw(b"x" * size).encode(),))
        sender.start()
        data = socket.recv()
        sender.join()
        assert type(data) is bytes and data == b"x" * size
    assert (socket.messages_received, stream.received) == (5, 5)
    assert socket.bytes_received == stream.received_bytes == 370_541


def test_recv_without_copy_gives_a_frame(core, kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"small", sequence=9).encode() + Raw(b"l" * 70_000).encode())
    frame = socket.recv(copy=False)
    assert isinstance(frame, core.Frame) and (frame.bytes, frame.sequence) == (b"small", 9)
    frame = socket.recv(copy=False)
    assert isinstance(frame, core.Frame) and frame.bytes == b"l" * 70_000


@pytest.mark.parametrize(
    "frames",
    [
        [Raw(b"x", TOPIC, topic=b"t")],
        [Raw(b"x", TENSOR, meta=META)],
        [Raw(b"x", LZ4)],
        [Raw(b"x", MORE), Raw(b"y")],
    ],
    ids=["topic", "tensor", "lz4", "multipart"],
)
def test_other_shapes_are_delivered_by_the_hook(kit, frames):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(b"".join(frame.encode() for frame in frames))
    word, origin, got, flags, copy = socket.recv(1 if readable(socket, 10) else 0, copy=False)
    assert (word, origin, flags, copy) == ("delivered", stream, 1, False)
    assert [frame.bytes for frame in got] == [frame.data for frame in frames]


def test_what_was_read_ahead_is_plain_and_in_its_place(core, kit):
    """With `_recv_message` it makes the order of the sender, whatever stands between plain messages."""
    stream, far = kit.raw()
    socket = kit.puller(stream)
    kinds = [Raw(b"t", TOPIC, topic=b"t"), Raw(b"m", TENSOR, meta=META), Raw(b"l" * 70_000), Raw(b"")]
    frames = []
    for number in range(60):
        frames += [Raw(b"%d" % (10 * number + n)) for n in range(number % 7)]
        frames += [kinds[number % 4]] if number % 5 else [Raw(b"a", MORE), Raw(b"b")]
    sender = threading.Thread(target=far.sendall, args=(b"".join(frame.encode() for frame in frames),))
    sender.start()
    got, ahead = [], 0
    while len(got) < len(frames):
        found = socket._read_ahead(5)
        if found is None:
            got += [frame.bytes for frame in socket._recv_message(10_000)[1]]
        else:
            assert found[0] is stream and 0 < len(found[1]) <= 5
            ahead += len(found[1])
            got += found[1]
    sender.join()
    assert got == [frame.data for frame in frames]
    assert socket._read_ahead(5) is None
    messages = len(frames) - sum(frame.flags == MORE for frame in frames)
    assert socket.messages_received == stream.received == messages
    assert socket.bytes_received == stream.received_bytes == sum(len(frame.data) for frame in frames)
    assert ahead > 50 if core.__name__ == "transfer.transports.core.native" else ahead == 0


def test_time_out_and_no_wait(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    with pytest.raises(Again):
        socket.recv(1)
    socket.receive_timeout = 30
    with pytest.raises(Again):
        socket.recv()
    with pytest.raises(Again):
        socket._recv_message(0)
    far.sendall(Raw(b"half a message").encode()[:40])
    with pytest.raises(Again):
        socket.recv()
    far.sendall(Raw(b"half a message").encode()[40:])
    assert socket.recv() == b"half a message"


def test_a_receiver_waits_for_a_stream(kit):
    socket = kit.puller()
    stream, far = kit.raw()
    far.sendall(Raw(b"early").encode())
    timer = threading.Timer(0.05, socket._attach, (stream, False, True))
    timer.start()
    assert socket.recv() == b"early"
    timer.join()
    assert socket.waited_ns > 0 and stream.waited_ns > 0


def test_a_stream_that_opens_later(kit):
    from tests.core.conftest import connected

    stream = kit.stream(-1)
    socket = kit.puller(stream)
    with pytest.raises(Again):
        socket.recv(1)
    near, far = connected()
    with far:
        near.setblocking(False)
        timer = threading.Timer(0.05, stream.open, (near.detach(),))
        timer.start()
        far.sendall(Raw(b"now").encode())
        assert socket.recv() == b"now"
        timer.join()


def test_spinning_finds_messages_too(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    socket.spin_us = 2000
    timer = threading.Timer(0.05, far.sendall, (Raw(b"later").encode(),))
    timer.start()
    assert socket.recv() == b"later"
    timer.join()
    socket.receive_timeout = 10
    with pytest.raises(Again):
        socket.recv()


def test_the_general_way_by_wish_and_by_mode(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"x").encode())
    socket._general_recv = True
    assert socket.recv(1, False) == "received in general"
    assert socket.general == [("recv", 1, False, False)]
    assert kit.socket(receive_mode=0).recv() == "received in general"
    origin, [frame] = socket._recv_message(1000)
    assert origin is stream and frame.data == b"x"


def test_fair_over_streams(kit):
    ends = [kit.raw("tcp", buffer=1 << 20) for _ in range(3)]
    for number, (_, far) in enumerate(ends):
        far.sendall(Raw(b"%d" % number * 10).encode() * 5000)
    socket = kit.puller(*(stream for stream, _ in ends))
    first = [socket.recv()[:1] for _ in range(6000)]
    for number in range(3):
        assert first.count(b"%d" % number) > 500
    rest = [socket.recv()[:1] for _ in range(9000)]
    for number in range(3):
        assert (first + rest).count(b"%d" % number) == 5000


def greedy(kit, count=3):
    """A socket whose first peer has sent thousands of small messages, and the others one each."""
    ends = [kit.raw("tcp", buffer=1 << 20) for _ in range(count)]
    ends[0][1].sendall(b"".join(Raw(b"%d" % number).encode() for number in range(5000)))
    socket = kit.puller(*(stream for stream, _ in ends))
    assert socket._recv_message(1000)[1][0].data == b"0"
    for _, far in ends[1:]:
        far.sendall(Raw(b"late").encode())
    return socket, ends


def in_order(socket, count, begun=1, passes=False):
    """Indices at which others' messages came among so many; the first one's come in order."""
    late, number = [], begun
    for index in range(count):
        data = socket._recv_message(1000)[1][0].data
        if data == b"late":
            late.append(index)
        else:
            assert data == b"%d" % number
            number += 1
        if passes:
            socket._pass_turn()
    return late


def test_many_small_messages_of_one_are_several_turns(kit):
    socket, _ = greedy(kit)
    late = in_order(socket, 5001)
    assert len(late) == 2 and late[-1] < 200


def test_each_large_message_of_one_is_a_turn(kit):
    """Of TLS too, where the end of one brings the beginning of the next along."""
    ends = [kit.raw("tcp", buffer=1 << 20) for _ in range(3)]
    large = Raw(b"x" * 160_000).encode()
    writer = threading.Thread(target=lambda: [ends[0][1].sendall(large) for _ in range(60)])
    writer.start()
    socket = kit.puller(*(stream for stream, _ in ends))
    assert len(socket._recv_message(5000)[1][0].data) == 160_000
    for _, far in ends[1:]:
        far.sendall(Raw(b"late").encode())
    found = []
    for _ in range(61):
        time.sleep(0.005)  # whatever is done with it: the writer is never behind
        found.append(len(socket._recv_message(5000)[1][0].data))
    writer.join(20)
    assert found.count(4) == 2 and sum(found) == 59 * 160_000 + 8
    assert 4 not in found[8:]


def test_a_peer_that_comes_while_another_one_is_always_ahead(kit):
    """The only peer's turn has no limit, and would never end where its bytes never do."""
    stream, far = kit.raw("tcp", buffer=1 << 20)
    newer, late = kit.raw("tcp", buffer=1 << 20)
    frames = b"".join(Raw(b"early" * 100).encode() for _ in range(4000))
    far.sendall(frames[: len(frames) // 4])
    writer = threading.Thread(target=far.sendall, args=(frames[len(frames) // 4 :],))
    writer.start()
    socket = kit.puller(stream)
    assert socket.recv() == b"early" * 100
    socket._attach(newer, False, True)
    late.sendall(Raw(b"late").encode())
    found = []
    for _ in range(4000):
        time.sleep(0.00005)  # the writer is never behind
        found.append(socket.recv())
    writer.join(20)
    assert found.index(b"late") < 1500, found.index(b"late")


def test_a_turn_that_is_passed(kit):
    socket, ends = greedy(kit)
    socket._pass_turn()
    late = in_order(socket, 40, passes=True)
    assert len(late) == 2 and late[-1] < 8
    for _, far in ends[1:]:
        far.sendall(Raw(b"late").encode())
    assert in_order(socket, 4963, begun=39)[-1] < 200


def test_what_waits_for_its_turn_shows_in_the_descriptor_and_is_not_lost(kit):
    socket, ends = greedy(kit)
    for _ in range(3):
        socket._pass_turn()
        assert select.select([socket.fileno()], [], [], 5)[0]
    socket._detach(ends[0][0])
    left = []
    while (frames := ends[0][0].receive()) is not None:
        left.append(frames[0].data)
    assert left == [b"%d" % number for number in range(1, 5000)]
    assert {socket._recv_message(1000)[1][0].data for _ in range(2)} == {b"late"}
    with pytest.raises(Again):
        socket._recv_message(0)
    assert not select.select([socket.fileno()], [], [], 0)[0]


def test_a_stalled_peer_does_not_hold_up_others(kit):
    stalled, far_stalled = kit.raw()
    alive, far = kit.raw()
    socket = kit.puller(stalled, alive)
    half = Raw(b"s" * 100_000).encode()
    far_stalled.sendall(half[:50_000])
    for number in range(5):
        far.sendall(Raw(b"%d" % number).encode())
        assert socket.recv() == b"%d" % number
    far_stalled.sendall(half[50_000:])
    assert socket.recv() == b"s" * 100_000


def test_control_frames_go_to_their_hook(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"\x06one", CONTROL).encode() + Raw(b"data").encode() + Raw(b"\x06two", CONTROL).encode())
    assert socket.recv() == b"data"
    assert socket.controls[0] == (stream, b"\x06one")
    with pytest.raises(Again):
        socket.recv(1)
    assert socket.controls == [(stream, b"\x06one"), (stream, b"\x06two")]
    assert socket.messages_received == 1


def test_control_frames_without_end_hold_up_no_call_and_nobody_else(kit):
    """One more comes for each that is handled."""
    stream, far = kit.raw()
    other, far_other = kit.raw()
    socket = kit.puller(stream)
    more = [Raw(b"\x06", CONTROL).encode()]
    handled = []

    def on_control(stream, frame):
        handled.append(stream)
        if len(handled) < 20_000:  # a receive that goes on until there are no more fails below, and ends
            far.sendall(more[0])

    socket._on_control = on_control
    far.sendall(more[0])
    for receive in (lambda: socket.recv(1), lambda: socket._recv_message(20)):
        before = len(handled)
        with pytest.raises(Again):
            receive()
        assert 0 < len(handled) - before < 10_000
    assert not socket._readable() and readable(socket)
    socket._attach(other, False, True)
    far_other.sendall(Raw(b"from another").encode())
    assert socket.recv() == b"from another"
    assert len(handled) < 20_000
    more[0] = b""
    far.sendall(Raw(b"data").encode())
    assert socket.recv() == b"data"


def test_filtered_by_own_subscriptions(kit):
    stream, far = kit.raw()
    socket = kit.socket(receive_mode=FILTERED)
    socket._attach(stream, False, True)
    socket._filter_add(b"a")
    socket._filter_add(b"a")
    frames = [Raw(b"abc"), Raw(b"b"), Raw(b"x", TOPIC, topic=b"a topic"), Raw(b"a", TOPIC, topic=b"x")]
    far.sendall(b"".join(frame.encode() for frame in frames))
    assert socket.recv() == b"abc"
    assert socket.recv()[2][0].topic == b"a topic"
    with pytest.raises(Again):
        socket.recv(1)
    assert socket.filtered == 2
    assert socket._filter_remove(b"a") is True
    far.sendall(Raw(b"ab").encode())
    assert socket.recv() == b"ab"
    assert socket._filter_remove(b"a") is True
    assert socket._filter_remove(b"a") is False
    far.sendall(Raw(b"ab").encode())
    with pytest.raises(Again):
        socket._recv_message(20)
    assert not socket._readable()


# --- ends and faults --------------------------------------------------------------------------


def test_the_end_of_a_stream_comes_after_its_messages(kit):
    ending, far_ending = kit.raw()
    alive, far = kit.raw()
    socket = kit.puller(ending, alive)
    far_ending.sendall(Raw(b"last").encode() * 3)
    far_ending.close()
    assert [socket.recv() for _ in range(3)] == [b"last"] * 3
    far.sendall(Raw(b"other").encode())
    assert socket.recv() == b"other"
    with pytest.raises(Again):
        socket.recv(1)
    assert [(stream, type(error)) for stream, error in socket.losses] == [(ending, Broken)]
    assert socket._streams() == [alive]
    assert ending.fd >= 0, "closing it is the owner's"


def test_a_bad_frame_costs_its_own_stream_only(kit):
    bad, far_bad = kit.raw()
    good, far = kit.raw()
    socket = kit.puller(bad, good)
    far_bad.sendall(Raw(b"fine").encode() + Raw(magic=3).encode() + bytes(100_000))
    far.sendall(Raw(b"good").encode())
    assert sorted([socket.recv(), socket.recv()]) == [b"fine", b"good"]
    with pytest.raises(Again):
        socket.recv(1)
    [(stream, error)] = socket.losses
    assert stream is bad and isinstance(error, ProtocolError) and error.reason == "magic"
    far.sendall(Raw(b"still").encode())
    assert socket.recv() == b"still"


def test_hooks_may_close_and_attach(core, kit):
    class Replacing(core.SocketBase):
        def _on_lost(self, stream, error):
            stream.close()
            self._attach(self.spare, False, True)

    ending, far_ending = kit.raw()
    spare, far = kit.raw()
    socket = kit.socket(receive_mode=1, base=Replacing)
    type(socket)._on_lost = Replacing._on_lost
    socket.spare = spare
    socket._attach(ending, False, True)
    far.sendall(Raw(b"from the spare").encode())
    far_ending.close()
    assert socket.recv() == b"from the spare"
    assert ending.fd == -1


def test_detached_and_closed_streams_are_left_alone(kit):
    first, far_first = kit.raw()
    second, far = kit.raw()
    socket = kit.puller(first, second)
    far_first.sendall(Raw(b"never seen").encode())
    socket._detach(first)
    first.close()
    far.sendall(Raw(b"seen").encode())
    assert socket.recv() == b"seen"
    second.close()
    with pytest.raises(Again):
        socket._recv_message(20)


def test_closing_wakes_receivers(kit):
    stream, _ = kit.raw()
    socket = kit.puller(stream)
    raised = []

    def work() -> None:
        try:
            socket.recv()
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
    for call in (socket.recv, lambda: socket.recv(1), lambda: socket._recv_message(0), socket.fileno):
        with pytest.raises(Closed):
            call()
    assert socket._readable() is False


def test_threads_receive_from_one_socket(kit):
    ends = [kit.raw("tcp") for _ in range(2)]
    socket = kit.puller(*(stream for stream, _ in ends))
    socket.receive_timeout = 300
    got, lock = [], threading.Lock()

    def work() -> None:
        try:
            while True:
                data = socket.recv()
                with lock:
                    got.append(data)
        except Again:
            pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(500):
        for _, far in ends:
            far.sendall(Raw(b"%d" % number * (number % 50)).encode())
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(b"%d" % number * (number % 50) for number in range(500) for _ in ends)


# --- the descriptor ---------------------------------------------------------------------------


def test_descriptor_follows_what_can_be_received(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    assert not socket._readable() and not readable(socket)
    far.sendall(Raw(b"x").encode() * 20)
    assert readable(socket, 10) and socket._readable()
    for left in range(19, -1, -1):
        socket.recv()
        assert socket._readable() is (left > 0)
        assert readable(socket) is (left > 0), "decoded messages must be seen"
    with pytest.raises(Again):
        socket.recv(1)


def test_descriptor_asked_for_when_messages_are_decoded_already(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"x").encode() * 3)
    socket.recv()
    assert readable(socket)


def test_half_a_message_is_not_readable_for_ever(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    raw = Raw(b"x" * 100_000).encode()
    for part in (raw[:20], raw[20:60_000]):
        far.sendall(part)
        assert readable(socket, 10)
        with pytest.raises(Again):
            socket.recv(1)
        assert not socket._readable() and not readable(socket)
    far.sendall(raw[60_000:])
    assert readable(socket, 10) and socket._readable()
    assert len(socket.recv(1)) == 100_000


def test_looking_does_not_lose_or_reorder(kit):
    ends = [kit.raw() for _ in range(2)]
    socket = kit.puller(*(stream for stream, _ in ends))
    for number in range(20):
        ends[0][1].sendall(Raw(b"%02d" % number).encode())
    got = []
    while len(got) < 20:
        if socket._readable():
            got.append(socket.recv(1))
    assert got == [b"%02d" % number for number in range(20)]


def test_notify_makes_the_descriptor_readable_until_it_is_read(kit):
    socket = kit.puller(kit.raw()[0])
    assert not socket._readable() and not readable(socket)
    socket._notify()
    assert readable(socket)
    with pytest.raises(Again):
        socket.recv(1)
    assert not readable(socket)


# --- sinks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 5_000, 70_000, 2_000_000])
def test_a_sink_gets_the_payload(kit, size):
    stream, far = kit.raw("tcp")
    socket = kit.puller(stream)
    data = (b"0123456789" * (size // 10 + 1))[:size]
    out = numpy.zeros(size, numpy.uint8)
    asked = []

    def sink(meta, topic, nbytes):
        asked.append((meta, topic, nbytes))
        return out

    raw = Raw(data, TENSOR | TOPIC | CRC, meta=META, topic=b"t").encode()
    sender = threading.Thread(target=far.sendall, args=(raw,))
    sender.start()
    origin, [frame] = socket._recv_message(10_000, sink)
    sender.join()
    assert origin is stream and asked == [(META, b"t", size)]
    assert out.tobytes() == data
    assert frame.buffer.obj is out or numpy.shares_memory(numpy.frombuffer(frame.data, numpy.uint8), out)
    assert kit.pool.in_use == 0


@pytest.mark.parametrize("size", [100, 70_000, 2_000_000])
def test_a_sink_that_raises_leaves_the_message_unread(kit, size):
    stream, far = kit.raw("tcp")
    socket = kit.puller(stream)

    def sink(meta, topic, nbytes):
        raise LookupError(nbytes)

    raw = Raw(b"m" * 10, MORE).encode() + Raw(b"x" * size, TENSOR, meta=META).encode()
    sender = threading.Thread(target=far.sendall, args=(raw + Raw(b"next").encode(),))
    sender.start()
    for _ in range(2):
        with pytest.raises(LookupError):
            socket._recv_message(10_000, sink)
    assert (socket.messages_received, stream.consumed) in ((0, 0), (0, 1))
    _, frames = socket._recv_message(10_000)
    sender.join()
    assert [frame.bytes for frame in frames] == [b"m" * 10, b"x" * size]
    assert socket.recv() == b"next"


def test_a_sink_may_decline(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"x" * 70_000).encode() + Raw(b"y").encode())
    _, [frame] = socket._recv_message(10_000, lambda *_: None)
    assert frame.bytes == b"x" * 70_000
    _, [frame] = socket._recv_message(10_000, lambda *_: None)
    assert frame.data == b"y"


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_sink_is_not_asked_for_compressed_data(kit, size):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"z" * size, TENSOR | LZ4, meta=META).encode())
    asked = []
    _, [frame] = socket._recv_message(10_000, lambda *what: asked.append(what))
    assert not asked and frame.bytes == b"z" * size


def test_a_sink_is_asked_for_one_message_only(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    first = numpy.zeros(50, numpy.uint8)
    far.sendall(Raw(b"a" * 50).encode() + Raw(b"b" * 80_000).encode()[:70_000])
    asked = []

    def sink(meta, topic, nbytes):
        asked.append(nbytes)
        return first

    socket._recv_message(10_000, sink)
    assert asked == [50] and first.tobytes() == b"a" * 50


def test_a_sinks_memory_is_left_alone_after_the_call(kit):
    stalled, far_stalled = kit.raw()
    alive, far = kit.raw()
    socket = kit.puller(stalled, alive)
    raw = Raw(b"s" * 200_000, TENSOR, meta=META).encode()
    far_stalled.sendall(raw[:100_000])
    out = bytearray(200_000)
    with pytest.raises(Again):
        socket._recv_message(50, lambda *_: out)
    out[:] = b"u" * 200_000
    out.append(1)
    far_stalled.sendall(raw[100_000:])
    _, [frame] = socket._recv_message(10_000)
    assert frame.bytes == b"s" * 200_000
    assert bytes(out[:-1]) == b"u" * 200_000
    far.sendall(Raw(b"x").encode())
    assert socket.recv() == b"x"


def test_a_stalled_peer_does_not_write_into_what_another_filled(kit):
    stalled, far_stalled = kit.raw()
    alive, far = kit.raw()
    socket = kit.puller(stalled, alive)
    raw = Raw(b"s" * 150_000).encode()
    far_stalled.sendall(raw[:100_000])
    out = bytearray(150_000)
    timer = threading.Timer(0.05, far.sendall, (Raw(b"a" * 150_000).encode(),))
    timer.start()
    origin, _ = socket._recv_message(10_000, lambda *_: out)
    timer.join()
    assert origin is alive and out == b"a" * 150_000
    far_stalled.sendall(raw[100_000:])
    _, [frame] = socket._recv_message(10_000)
    assert frame.bytes == b"s" * 150_000 and out == b"a" * 150_000


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_detached_stream_is_forgotten_also_by_its_number(kit, closed_first):
    gone, _ = kit.raw()
    socket = kit.puller(gone)
    if closed_first:
        gone.close()  # from here on its number may be another's
    socket._detach(gone)
    others = [kit.raw() for _ in range(3)]
    for stream, _ in others:
        socket._attach(stream, False, True)
    assert socket._streams() == [stream for stream, _ in others]
    for number, (stream, far) in enumerate(others):
        far.sendall(Raw(b"%d" % number).encode())
        origin, [frame] = socket._recv_message(10_000)
        assert origin is stream and frame.bytes == b"%d" % number


def test_what_waits_for_its_turn_is_not_starved_by_those_that_send_on(kit):
    """Its rest was read, so that epoll does not name it; others are named all the time."""
    ends = [kit.raw("tcp", buffer=1 << 20) for _ in range(3)]
    ends[0][1].sendall(b"".join(Raw(b"a%d" % number).encode() for number in range(70)))
    socket, enough = kit.puller(*(stream for stream, _ in ends)), threading.Event()

    def floods(far):
        while not enough.is_set():
            far.sendall(Raw(b"b" * 4000).encode() * 50)

    others = [threading.Thread(target=floods, args=(far,)) for _, far in ends[1:]]
    for thread in others:
        thread.start()
    try:
        found, seen = [], 0
        while len(found) < 70 and seen < 3000:
            data = socket._recv_message(5000)[1][0].data
            seen += 1
            if data.startswith(b"a"):
                found.append(data)
            time.sleep(0.0002)
    finally:
        enough.set()
        left = threading.Thread(target=lambda: drain(socket, others))
        left.start()
        for thread in others:
            thread.join(20)
        left.join(20)
    assert found == [b"a%d" % number for number in range(70)]
    assert seen < 600


def drain(socket, threads):
    while any(thread.is_alive() for thread in threads):
        try:
            socket._recv_message(50)
        except Again:
            continue


def test_plain_messages_of_one_are_turns_too(kit):
    socket, _ = greedy(kit)
    first = [socket.recv() for _ in range(600)]
    assert first.count(b"late") == 2


@pytest.fixture
def holding(core):
    if core.__name__.endswith("pure"):
        pytest.skip("the pure core holds no stream: `_pause_reading` returns False")


def test_a_stream_that_is_held_keeps_its_messages_and_their_order(holding, kit):
    (first, far), (second, other) = kit.raw(), kit.raw()
    socket = kit.puller(first)
    socket._attach(second, False, True)
    far.sendall(b"".join(Raw(b"held %d" % n).encode() for n in range(5)) + Raw(b"l" * 70_000).encode())
    other.sendall(b"".join(Raw(b"other %d" % n).encode() for n in range(5)))
    came = [socket.recv(), socket.recv()]  # a part of both may have been read ahead
    assert socket._pause_reading(first)
    assert not socket._pause_reading(first)
    while True:
        try:
            came.append(socket.recv(1))
        except Again:
            break
    assert [one for one in came if one.startswith(b"other")] == [b"other %d" % n for n in range(5)]
    assert len([one for one in came if one.startswith(b"held")]) <= 2
    assert not readable(socket)
    socket._resume_reading(first)
    assert readable(socket)
    socket.receive_timeout = 5000
    while len(came) < 11:
        came.append(socket.recv())
    assert [one[:6] for one in came if not one.startswith(b"other")] == [b"held %d" % n for n in range(5)] + [
        b"llllll"
    ]


def test_the_end_of_a_stream_that_is_held_is_found_afterwards(holding, kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    far.sendall(Raw(b"last").encode())
    far.close()
    assert socket._pause_reading(stream)
    with pytest.raises(Again):
        socket.recv(1)
    socket._resume_reading(stream)
    assert socket.recv() == b"last"
    with pytest.raises(Again):
        socket.recv(1)
    assert [lost for lost, _ in socket.losses] == [stream]


def test_a_stream_that_is_detached_while_it_is_held(holding, kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    assert socket._pause_reading(stream)
    socket._detach(stream)
    socket._resume_reading(stream)
    far.sendall(Raw(b"x").encode())
    with pytest.raises(Again):
        socket.recv(1)
    socket._attach(stream, False, True)
    socket.receive_timeout = 5000
    assert socket.recv() == b"x"


def test_a_message_that_is_given_back_comes_before_one_that_was_found_meanwhile(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    for data in (b"1", b"2", b"3"):
        far.sendall(Raw(data).encode())
    first = socket._recv_message(1000)
    assert readable(socket, 1.0) and socket._readable()
    socket._give_again(*first)
    assert [frames[0].data for _, frames in socket._found()] == [b"1", b"2"]
    assert [socket._recv_message(1000)[1][0].data for _ in range(3)] == [b"1", b"2", b"3"]
    assert (stream.received, socket.messages_received) == (3, 3)
