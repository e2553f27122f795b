"""Streams of other transports (inproc, later RDMA) in the same sockets."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

import pytest

from tests.core.conftest import FANOUT, FILTERED, ROUND_ROBIN
from tests.core.raw_frames import CONTROL, MORE, TOPIC, Raw, plain, read_frame
from transfer.transports import base
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Again, Broken, Closed, ProtocolError
from transfer.transports.inproc_stream import pair


class Foreign(base.Stream):
    """A stream over two lists, with room for `limit` messages."""

    def __init__(self, limit: int = 100) -> None:
        self.arrived: deque = deque()
        self.taken: list = []
        self.limit = limit
        self.end: BaseException | None = None

    def arrive(self, *frames) -> None:
        self.arrived.append(list(frames))
        if self.on_readable:
            self.on_readable()

    def break_(self, error: BaseException) -> None:
        self.end = self.broken = error
        if self.on_readable:
            self.on_readable()

    def make_room(self, limit: int) -> None:
        self.limit = limit
        if self.on_writable:
            self.on_writable()

    def send(self, frames, *, force=False, hold=False, released=None) -> int:
        if self.broken:
            raise Broken("gone") from self.broken
        if len(self.taken) >= self.limit:
            return 0
        self.taken.append([bytes(frame[4]) for frame in frames])
        self.sent += 1
        if released:
            released(None)
        return self.sent

    def flush(self) -> bool:
        return True

    def take(self, sink=None):
        if self.arrived:
            return self.arrived.popleft()
        if self.end:
            raise self.end
        return None

    def take_unsent(self):
        return []

    def close(self) -> int:
        return 0

    def subscribe(self, prefix: bytes) -> None: ...

    def unsubscribe(self, prefix: bytes) -> bool:
        return False

    def matches(self, topic: bytes) -> bool:
        return topic.startswith(b"a")


def test_attach_sets_the_callbacks_and_receives_what_is_there(core, kit):
    stream = Foreign()
    stream.arrive(core.Frame(b"early"))
    socket = kit.puller(stream)
    assert callable(stream.on_readable)
    origin, [frame] = socket._recv_message(1000)
    assert origin is stream and frame.data == b"early"
    with pytest.raises(Again):
        socket._recv_message(0)


def test_arrival_wakes_a_receiver(core, kit):
    stream = Foreign()
    socket = kit.puller(stream)
    timer = threading.Timer(0.05, stream.arrive, (core.Frame(b"a", flags=MORE), core.Frame(b"b")))
    timer.start()
    _, frames = socket._recv_message(10_000)
    timer.join()
    assert [frame.bytes for frame in frames] == [b"a", b"b"]
    assert socket.messages_received == 1


@pytest.mark.parametrize("core", ["native"], indirect=True)
def test_a_fan_out_that_an_error_ends_counts_who_misses_it(kit):
    class NoMemory(Foreign):
        def send(self, frames, *, force=False, hold=False, released=None) -> int:
            raise MemoryError

    own, far = kit.raw()
    own.subscribe(b"a")
    fails, later = NoMemory(), Foreign()
    socket = kit.socket(send_mode=FANOUT)
    for stream in own, fails, later:
        socket._attach(stream, True, False)
    with pytest.raises(MemoryError):
        socket._send_frames([plain(b"abc")], 0)
    assert read_frame(far).data == b"abc"
    assert (socket.messages_sent, fails.dropped, later.dropped) == (1, 0, 1)


def test_fair_between_foreign_and_own(core, kit):
    stream = Foreign()
    own, far = kit.raw()
    socket = kit.puller(stream, own)
    for _ in range(500):
        stream.arrive(core.Frame(b"foreign"))
    far.sendall(Raw(b"own").encode() * 500)
    first = [socket._recv_message(10_000)[0] for _ in range(500)]
    assert first.count(stream) > 50 and first.count(own) > 50
    for _ in range(500):
        socket._recv_message(10_000)


def test_the_descriptor_tells_of_foreign_messages(core, kit):
    import select

    stream = Foreign()
    socket = kit.puller(stream)
    assert not socket._readable()
    assert not select.select([socket], [], [], 0)[0]
    stream.arrive(core.Frame(b"a"))
    stream.arrive(core.Frame(b"b"))
    assert select.select([socket], [], [], 10)[0]
    for _ in range(2):
        assert socket._readable() and select.select([socket], [], [], 0)[0]
        socket._recv_message(0)
    assert not socket._readable()


def test_control_filter_and_loss(core, kit):
    stream = Foreign()
    socket = kit.socket(receive_mode=FILTERED)
    socket._attach(stream, False, True)
    socket._filter_add(b"a")
    stream.arrive(core.Frame(b"\x06", flags=CONTROL))
    stream.arrive(core.Frame(b"b"))
    stream.arrive(core.Frame(b"x", flags=TOPIC, topic=b"abc"))
    stream.break_(Broken("the end"))
    assert socket._recv_message(1000)[1][0].topic == b"abc"
    with pytest.raises(Again):
        socket._recv_message(20)
    assert socket.controls == [(stream, b"\x06")] and socket.filtered == 1
    assert [lost for lost, _ in socket.losses] == [stream]
    assert socket._streams() == []


def test_a_sink_for_a_foreign_message(core, kit):
    stream = Foreign()
    socket = kit.puller(stream)
    stream.arrive(core.Frame(b"payload"))
    out = bytearray(7)

    def refuse(*_):
        raise LookupError

    with pytest.raises(LookupError):
        socket._recv_message(1000, refuse)
    _, [frame] = socket._recv_message(1000, lambda meta, topic, nbytes: out)
    assert frame.bytes == out == b"payload"


def test_plain_send_with_a_foreign_stream(kit):
    stream = Foreign()
    socket = kit.pusher(stream)
    if socket.send(b"x") == "sent in general":
        socket._send_frames([(0, 0, None, None, b"x")], 0)
    assert stream.taken == [[b"x"]]
    socket._detach(stream)
    assert stream.on_readable is None and stream.on_writable is None
    own, far = kit.raw()
    socket._attach(own, True, False)
    assert socket.send(b"x") is None
    assert read_frame(far).data == b"x"


def test_round_robin_over_foreign_and_own(kit):
    stream = Foreign()
    own, _ = kit.raw()
    socket = kit.pusher(stream, own)
    takers = [socket._send_frames([(0, 0, None, None, b"x")], 0) for _ in range(10)]
    assert takers.count(stream) == takers.count(own) == 5


class Leaving(Foreign):
    """Full; while it is asked, as while an offer lets the interpreter's lock go, other streams leave."""

    def __init__(self, socket, others) -> None:
        super().__init__(limit=0)
        self.socket = socket
        self.others = others

    def send(self, frames, **_) -> bool:
        for stream in self.others:
            self.socket._detach(stream)
        return False


@pytest.mark.parametrize("itself", [False, True])
def test_streams_leave_while_a_round_goes_on(kit, itself):
    socket = kit.socket(send_mode=ROUND_ROBIN)
    gone = [Foreign() for _ in range(40)]
    asks = Leaving(socket, gone)
    if itself:
        gone.append(asks)
    for stream in (asks, *gone[:40]):
        socket._attach(stream, True, False)
    with pytest.raises(Again):
        socket._send_frames([(0, 0, None, None, b"x")], 0)
    assert all(not stream.taken for stream in gone)
    assert socket._streams() == ([] if itself else [asks])


class Beside(Foreign):
    """Full; while it is asked, another thread sends to whoever is next."""

    def __init__(self, socket) -> None:
        super().__init__(limit=0)
        self.socket = socket

    def send(self, frames, **_) -> bool:
        if bytes(frames[0][4]) != b"beside":
            self.socket._send_frames([(0, 0, None, None, b"beside")], 0)
        return False


def test_every_stream_is_asked_whatever_other_threads_send(kit):
    """Else a sender would wait although there is room, and nobody would tell it."""
    socket = kit.socket(send_mode=ROUND_ROBIN)
    full, free = Beside(socket), Foreign(limit=2)
    for stream in (full, free):
        socket._attach(stream, True, False)
    assert socket._send_frames([(0, 0, None, None, b"x")], 0) is free
    assert free.taken == [[b"beside"], [b"x"]]


class Drained(Foreign):
    """Full at first, and told to have room before that refusal has reached the sender."""

    asked = 0

    def send(self, frames, **_) -> bool:
        self.asked += 1
        if self.asked == 1:
            self.on_writable()
        return self.asked > 1


def test_room_that_is_told_during_the_refusal_is_not_forgotten(kit):
    socket = kit.socket(send_mode=ROUND_ROBIN)
    stream = Drained()
    socket._attach(stream, True, False)
    assert socket._send_frames([(0, 0, None, None, b"x")], 10_000) is stream
    assert socket._writable()


def test_a_full_foreign_stream_wakes_its_sender(kit):
    stream = Foreign(limit=1)
    socket = kit.pusher(stream)
    frames = [(0, 0, None, None, b"x")]
    assert socket._send_frames(frames, 0) is stream
    with pytest.raises(Again):
        socket._send_frames(frames, 0)
    timer = threading.Timer(0.05, stream.make_room, (2,))
    timer.start()
    assert socket._send_frames(frames, 10_000) is stream
    timer.join()
    assert socket.blocked_ns > 0


def test_fan_out_to_foreign(kit):
    stream, full = Foreign(), Foreign(limit=0)
    socket = kit.socket(send_mode=FANOUT)
    for one in (stream, full):
        socket._attach(one, True, False)
    told = []
    taken = socket._send_frames([(0, 0, None, None, b"abc")], 0, released=told.append)
    assert taken == 1 and full.dropped == 1 and told == [None]
    assert socket._send_frames([(0, 0, None, None, b"xyz")], 0) == 0
    assert socket.dropped_no_peer == 1


def test_a_broken_foreign_stream_is_lost(kit):
    stream = Foreign()
    own, far = kit.raw()
    socket = kit.pusher(stream, own)
    stream.broken = Broken("gone")
    for _ in range(4):
        assert socket._send_frames([(0, 0, None, None, b"x")], 0) is own
    assert [lost for lost, _ in socket.losses] == [stream]
    assert [read_frame(far).data for _ in range(4)] == [b"x"] * 4


def test_closing_wakes_a_receiver_of_foreign_streams(kit):
    socket = kit.puller(Foreign())
    timer = threading.Timer(0.05, socket._close_core)
    timer.start()
    with pytest.raises(Closed):
        socket._recv_message(10_000)
    timer.join()


class Sinking(Foreign):
    """Reads into a sink's memory by halves: the second one comes with `finish`."""

    takes_sink, sinking = True, False

    def __init__(self) -> None:
        super().__init__()
        self.memory: object = None
        self.own: bytearray | None = None
        self.left = 0

    def arrive(self, *frames) -> None:
        self.done = len(frames) > 1 or len(frames[0].data) % 2 == 0
        super().arrive(*frames)

    def take(self, sink=None):
        self.placed = False
        if not self.arrived:
            return super().take()
        frames = self.arrived[0]
        data = frames[0].data
        if len(frames) == 1 and self.memory is None and self.own is None and sink is not None:
            self.memory = sink(frames[0].meta, frames[0].topic, len(data))
            self.sinking = self.memory is not None
        if self.sinking:
            memoryview(self.memory)[: len(data) // 2] = data[: len(data) // 2]
        if not self.done:
            return None
        if self.sinking:
            self.placed, self.sinking = True, False
            memoryview(self.memory)[:] = data
            frames[0].data = self.memory
        self.memory = self.own = None
        return super().take()

    def finish(self) -> None:
        self.done = True
        self.on_readable()

    def leave_sink(self) -> None:
        self.left += 1
        if self.sinking:
            self.own, self.memory, self.sinking = bytearray(), None, False


ODD = b"0123456789abcde"


def test_a_stream_that_takes_a_sink_is_given_it(core, kit):
    stream = Sinking()
    socket = kit.puller(stream)
    stream.arrive(core.Frame(b"payload!", meta=b"m" * 48))
    out, asked = bytearray(8), []

    def sink(meta, topic, nbytes):
        asked.append((meta, topic, nbytes))
        return out

    _, [frame] = socket._recv_message(1000, sink)
    assert frame.data is out and out == b"payload!"
    assert asked == [(b"m" * 48, None, 8)]
    assert socket.messages_received == 1 and socket.bytes_received == 8
    stream.arrive(core.Frame(b"one", flags=MORE), core.Frame(b"more"))
    parts = {3: bytearray(3), 4: bytearray(4)}
    _, frames = socket._recv_message(1000, lambda meta, topic, nbytes: parts[nbytes])
    assert [frame.bytes for frame in frames] == [b"one", b"more"]
    assert parts == {3: b"one", 4: b"more"}


def test_a_sink_that_refuses_leaves_a_foreign_message_to_be_seen(core, kit):
    import select

    stream = Sinking()
    socket = kit.puller(stream)
    socket.fileno()
    stream.arrive(core.Frame(b"payload!"))

    def refuse(*_):
        raise LookupError

    with pytest.raises(LookupError):
        socket._recv_message(1000, refuse)
    assert select.select([socket], [], [], 10)[0] and socket._readable()
    out = bytearray(8)
    _, [frame] = socket._recv_message(0, lambda *_: out)
    assert frame.data is out and out == b"payload!"


def test_memory_of_a_sink_is_left_when_its_call_ends(core, kit):
    stream = Sinking()
    socket = kit.puller(stream)
    stream.arrive(core.Frame(ODD))
    out = bytearray(15)
    with pytest.raises(Again):
        socket._recv_message(20, lambda *_: out)
    assert stream.left and not stream.sinking
    out[:] = bytes(15)
    stream.finish()
    assert socket._recv_message(1000)[1][0].bytes == ODD and not any(out)


@pytest.mark.parametrize("which", ["foreign", "placing", "own"])
def test_memory_of_a_sink_is_for_one_message(core, kit, which):
    """Another stream's message comes while half of one lies there."""
    stream = Sinking()
    other = Foreign() if which == "foreign" else Sinking()
    own, far = kit.raw()
    socket = kit.puller(stream, other, own)
    stream.arrive(core.Frame(ODD))
    out = bytearray(15)

    def come() -> None:
        deadline = time.monotonic() + 10
        while not stream.sinking and time.monotonic() < deadline:
            time.sleep(0.001)
        if which == "own":
            far.sendall(Raw(ODD.upper()).encode())
        else:
            other.arrive(core.Frame(ODD.upper()))
            if which == "placing":
                other.finish()

    thread = threading.Thread(target=come)
    thread.start()
    origin, [frame] = socket._recv_message(20_000, lambda *_: out)
    thread.join()
    assert origin is (own if which == "own" else other)
    assert frame.bytes == out == ODD.upper()
    assert stream.left and stream.own is not None
    stream.finish()
    assert socket._recv_message(1000)[1][0].bytes == ODD
    assert out == ODD.upper()


def test_a_protocol_error_of_the_sink_ends_the_foreign_stream(core, kit):
    stream = Sinking()
    socket = kit.puller(stream)
    stream.arrive(core.Frame(b"payload!"))

    def nonsense(*_):
        raise ProtocolError("header", "nonsense")

    with pytest.raises(Again):
        socket._recv_message(50, nonsense)
    assert [lost for lost, _ in socket.losses] == [stream]


def test_a_stream_that_cannot_leave_the_memory_is_lost(core, kit):
    class Stuck(Sinking):
        def leave_sink(self) -> None:
            raise Broken("it did not end")

    stream = Stuck()
    socket = kit.puller(stream)
    stream.arrive(core.Frame(ODD))
    with pytest.raises(Again):
        socket._recv_message(20, lambda *_: bytearray(15))
    assert [lost for lost, _ in socket.losses] == [stream]


class Pointer:
    """Device memory: nobody can read it here."""

    nbytes = 1 << 20
    __cuda_array_interface__ = {"shape": (1 << 20,), "typestr": "|u1", "data": (4096, False)}  # noqa: RUF012


def test_the_core_refuses_device_memory_for_a_connection_of_its_own(kit):
    """As when a peer by TCP comes at the moment of sending: then the tensor is staged."""
    own, far = kit.raw()
    socket = kit.pusher(own)
    with pytest.raises((TypeError, BufferError)):
        socket._send_frames([(0, 0, None, None, Pointer())], 0, hold=True)
    assert socket._send_frames([(0, 0, None, None, b"next")], 0) is own
    assert read_frame(far).data == b"next"


def test_a_full_inproc_peer_is_not_writable(kit):
    """Also before it refused a message, and whichever of its two limits it is at."""
    for limits in ({"send_high_water": 2}, {"send_high_water": 0, "send_high_water_bytes": 2}):
        one, other = pair(SocketType.PUSH, SocketType.PULL)
        for name, value in limits.items():
            setattr(one, name, value)
        socket = kit.pusher(one)
        for _ in range(2):
            assert socket._writable() is True
            socket._send_frames([plain(b"x")], 0)
        assert socket._writable() is False
        assert socket._wait_writable(0) is False
        timer = threading.Timer(0.05, other.receive)
        timer.start()
        assert socket._wait_writable(10_000) is True
        timer.join()
        assert socket._writable() is True
        socket._send_frames([plain(b"x")], 0)
        assert socket._writable() is False
        socket._detach(one)
        one.close()
        other.close()


def test_a_foreign_stream_tells_its_number(core, kit):
    one, other = pair(SocketType.PUSH, SocketType.PULL)
    one.send([(0, 0, None, None, b"before")])
    socket = kit.pusher(one)
    told = []
    socket._send_frames([(0, 0, None, None, b"x")], 0, taken=lambda *what: told.append(what))
    assert told == [(one, 2)]
    other.close()
    with pytest.raises((Again, Broken)):
        socket._send_frames([(0, 0, None, None, b"x")], 0, taken=lambda *what: told.append(what))
    assert len(told) == 1


def test_control_frames_without_end_hold_up_no_call(core, kit):
    """One more comes for each that is handled."""
    socket, foreign = kit.puller(), Foreign()
    socket._attach(foreign, False, True)
    handled = []
    without_end = 1_000_000  # what 20 ms are too short for on any machine

    def on_control(stream, frame):
        handled.append(stream)
        if len(handled) < without_end:
            foreign.arrive(core.Frame(b"\x06", flags=CONTROL))

    socket._on_control = on_control
    foreign.arrive(core.Frame(b"\x06", flags=CONTROL))
    for receive in (lambda: socket.recv(1), lambda: socket._recv_message(20)):
        with pytest.raises(Again):
            receive()
    assert not socket._readable()
    assert len(handled) < without_end
    foreign.arrived.clear()
    foreign.arrive(core.Frame(b"data"))
    assert socket.recv() == b"data"


def test_a_handler_that_raises_while_a_sink_is_left_keeps_nothing_locked(kit):
    """The transport still writes into the memory of the call: it is made to stop all the same."""

    class Rung(Exception):
        pass

    class Half(Foreign):
        takes_sink, sinking = True, False
        left = 0

        def take(self, sink=None):
            self.sinking = sink is not None
            return super().take()

        def leave_sink(self) -> None:
            self.left += 1
            self.sinking = False
            if self.left == 1:
                raise Rung

    stream = Half()
    puller = kit.puller(stream)
    with suppress(Rung):  # the time-out's error comes first, this one as soon as Python code runs
        with suppress(Again, Rung):
            puller._recv_message(10, lambda *_: None)
        time.sleep(0)
    with pytest.raises(Again) as later:
        puller._recv_message(50, lambda *_: None)
    assert "another thread" not in str(later.value)
    assert stream.left >= 2
