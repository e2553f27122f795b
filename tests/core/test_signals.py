"""Signals: an interrupted wait leaves a consistent state, an ignored one changes nothing."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from tests.core.raw_frames import META, TENSOR, Raw, eventually, plain, read_frame
from transfer.transports.errors import Again, Broken


class Interrupt(Exception):
    """What the signal handler of these tests raises."""


@pytest.fixture
def alarm():
    """alarm(seconds): Interrupt is raised in the main thread after so long."""

    def ring(number, frame):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("spin", [0, 200_000])
def test_an_interrupted_receive_loses_nothing(kit, alarm, spin):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    socket.spin_us = spin
    guard = threading.Timer(3, far.sendall, (Raw(b"too late").encode(),))
    guard.start()
    alarm(0.05)
    got = []
    with pytest.raises(Interrupt):
        got.extend(map(socket.recv, (0,)))  # so that a message received before the signal is seen
    guard.cancel()
    guard.join()
    assert not got, "the interrupt must end the wait, not wait for its end"
    far.sendall(Raw(b"one").encode() + Raw(b"two").encode())
    assert [socket.recv(), socket.recv()] == [b"one", b"two"]


@pytest.mark.parametrize("size", [50, 300_000])
@pytest.mark.parametrize("part", [10, 60, 83])
def test_interrupted_inside_a_message(kit, alarm, size, part):
    stream, far = kit.raw("tcp")
    socket = kit.puller(stream)
    part = part if size == 50 else part * 3000
    raw = Raw(b"x" * size, TENSOR, meta=META).encode()
    far.sendall(raw[:part])
    alarm(0.05)
    out = bytearray(size)
    with pytest.raises(Interrupt):
        socket._recv_message(10_000, lambda *_: out)
    out.append(1)
    sender = threading.Thread(target=far.sendall, args=(raw[part:],))
    sender.start()
    _, [frame] = socket._recv_message(10_000)
    sender.join()
    assert frame.bytes == b"x" * size


def test_interrupted_while_waiting_for_room(kit, alarm):
    stream, far = kit.raw(buffer=4096, send_high_water=1)
    socket = kit.pusher(stream)
    with pytest.raises(Again):
        while True:
            socket._send_frames([plain(b"x" * 10_000)], 0)
    sent = stream.sent
    alarm(0.05)
    with pytest.raises(Interrupt):
        socket.send(b"interrupted")
    assert stream.sent == sent
    reader = threading.Thread(target=lambda: [read_frame(far) for _ in range(sent)])
    reader.start()
    socket.send(b"next")
    reader.join()
    assert read_frame(far).data == b"next"


def test_interrupted_while_nobody_is_there(kit, alarm):
    socket = kit.pusher()
    alarm(0.05)
    with pytest.raises(Interrupt):
        socket.send(b"x")
    stream, far = kit.raw()
    socket._attach(stream, True, False)
    socket.send(b"y")
    assert read_frame(far).data == b"y"


def interrupted_write(kit) -> bool:
    """One large send with a signal in the middle; False if the reader was too slow for that.

    A kernel that takes nothing for 20 ms makes the sender copy the rest and return early.
    """
    stream, far = kit.raw("tcp", buffer=65536)
    socket = kit.pusher(stream)
    data = bytearray(32 << 20)
    stopped, rung = threading.Event(), threading.Event()
    sender = threading.get_ident()
    far.settimeout(0.05)

    def drink() -> None:
        got = 0
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                got += len(far.recv(1 << 16))
            if got > 1 << 20 and not rung.is_set():  # the frame is on its way
                signal.pthread_kill(sender, signal.SIGALRM)
                rung.set()

    reader = threading.Thread(target=drink)
    finished = []
    try:
        reader.start()
        finished.extend(map(socket.send, (data,)))  # no signal comes between the two
        rung.wait(30)
    except Interrupt:
        pass
    finally:
        stopped.set()
        reader.join()
    interrupted = not finished and stream.sent > 0
    if interrupted:
        assert stream.broken is not None
        with pytest.raises(Broken):
            stream.send([plain(b"after")])
    stream.close()
    far.close()
    kit.flusher.reap()
    data.append(1)
    return interrupted


@pytest.mark.usefixtures("alarm")
def test_a_write_interrupted_inside_a_frame_ends_the_stream(kit):
    assert any(interrupted_write(kit) for _ in range(100))


def test_a_handler_that_returns_changes_nothing(kit):
    stream, far = kit.raw()
    socket = kit.puller(stream)
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
        timer = threading.Timer(0.1, far.sendall, (Raw(b"x").encode(),))
        timer.start()
        assert socket.recv() == b"x"
        timer.join()
        with pytest.raises(Again):
            socket._recv_message(50)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) > 1


def test_traffic_under_a_rain_of_signals(kit):
    near, far = kit.pair("tcp", buffer=8192)
    pusher, puller = kit.pusher(near), kit.puller(far)
    messages = [bytes([number % 251]) * (number * 7919 % 90_000) for number in range(300)]
    sender = threading.Thread(target=lambda: [pusher.send(message) for message in messages])
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
        sender.start()
        got = [puller.recv() for _ in messages]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sender.join()
    assert got == messages
    eventually(lambda: near.queued == 0)
