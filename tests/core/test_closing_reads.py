"""A stream that is closed while another thread is in a read of it."""

from __future__ import annotations

import importlib
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.core.conftest import Kit, connected
from tests.core.raw_frames import MORE, Raw, eventually
from transfer.transports.errors import Broken, Closed, ProtocolError

MIB = 1 << 20
#: of the kernel: so much that a flood never lets a reader wait
BUFFER = 32 * MIB


@contextmanager
def flooded(far: socket.socket, size: int) -> Iterator[list[int]]:
    """The payload of a large frame comes faster than it can be read, until the connection ends: without a
    copy, from pages that are there already. How much of it was not sent."""
    far.settimeout(None)  # `os.sendfile` waits for room; the stream's end ends it
    with open(os.memfd_create("flood"), "wb+") as file:
        file.truncate(16 * MIB)
        file.write(b"\xff" * 16 * MIB)
        file.flush()

        def pump() -> None:
            try:
                while left[0]:
                    left[0] -= os.sendfile(far.fileno(), file.fileno(), 0, min(left[0], 16 * MIB))
            except OSError:
                return

        left = [size]
        far.sendall(Raw(length=size).encode())
        thread = threading.Thread(target=pump, daemon=True)
        thread.start()
        yield left
        thread.join(30)
        assert not thread.is_alive()


def reader(stream: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that receives until a message is whole, or the end; and which it was."""
    ends: list[Any] = []

    def run() -> None:
        try:
            while (message := stream.receive()) is None:
                time.sleep(0.0001)
            ends.append(message)
        except (Broken, ProtocolError) as error:
            ends.append(error.with_traceback(None))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ends


@pytest.mark.parametrize("turn", range(8))
def test_memory_that_a_thread_reads_into_is_not_given_away_by_a_close(kit: Any, turn: int) -> None:
    size = 160 * MIB
    stream, far = kit.raw("tcp")
    with flooded(far, size):
        thread, ends = reader(stream)
        assert eventually(lambda: kit.pool.in_use)
        time.sleep(0.003 * turn)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1.0)  # what was freed is taken before the reader has another word
        try:
            stream.close()
            lease = kit.pool.lease(size)
        finally:
            sys.setswitchinterval(before)
        view = memoryview(lease)[::4096]
        view[:] = bytes(len(view))
        thread.join(30)
        assert not thread.is_alive() and ends
    assert not any(view), "a closed stream read into memory of others"
    del view, lease, ends[:]
    assert eventually(lambda: kit.pool.in_use == 0)


def in_thread(call: Any, *arguments: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread in this call; what it returned or raised."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(call(*arguments))
        except (Closed, Broken) as error:
            ends.append(error.with_traceback(None))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ends


@pytest.mark.parametrize("into", ["a lease", "the caller's memory"])
def test_a_receive_leaves_a_flood_when_its_socket_is_closed(kit: Any, into: str) -> None:
    size = 768 * MIB  # were it read to its end, it would be received
    stream, far = kit.raw("tcp", BUFFER)
    puller = kit.puller(stream)
    memory = mmap.mmap(-1, size)
    sinks = [lambda meta, topic, nbytes: memory] if into != "a lease" else []
    with flooded(far, size) as left:
        thread, ends = in_thread(puller._recv_message, -1, *sinks)
        assert eventually(lambda: left[0] < size - 32 * MIB)
        puller._close_core()
        stream.close()
        thread.join(30)
        assert not thread.is_alive() and isinstance(ends[0], Closed)
    assert left[0] > 0
    assert eventually(lambda: kit.pool.in_use == 0)


def test_a_stream_is_taken_out_between_two_reads_and_read_on(kit: Any) -> None:
    size = 768 * MIB
    stream, far = kit.raw("tcp", BUFFER)
    puller = kit.puller(stream)
    with flooded(far, size) as left:
        thread, ends = in_thread(puller._recv_message, -1)
        assert eventually(lambda: left[0] < size - 32 * MIB)
        puller._detach(stream)
        assert stream.midway, "the flood was read to its end"
        puller._close_core()
        thread.join(30)
        assert not thread.is_alive() and isinstance(ends[0], Closed)
        (frame,) = eventually(stream.receive, 30)
    view = memoryview(frame.data)
    assert len(view) == size and view[:: 64 * MIB].tobytes() == b"\xff" * 12


def trickle(far: socket.socket) -> None:
    try:
        while True:
            far.sendall(b"x")
            time.sleep(0.001)
    except OSError:
        return


@pytest.mark.parametrize("carried", ["plain", "tls"])
def test_a_receive_leaves_a_trickle_when_its_socket_is_closed(kit: Any) -> None:
    stream, far = kit.raw("tcp")
    puller = kit.puller(stream)
    memory = bytearray(64 * MIB)
    far.sendall(Raw(length=len(memory)).encode())
    sender, _ = in_thread(trickle, far)
    thread, ends = in_thread(puller._recv_message, -1, lambda meta, topic, nbytes: memory)
    assert eventually(lambda: memory[20] == ord("x"))
    puller._close_core()
    stream.close()
    for one in (thread, sender):
        one.join(30)
        assert not one.is_alive()
    assert isinstance(ends[0], Closed)


def test_a_closed_stream_keeps_nothing_of_half_a_message(kit: Any) -> None:
    stream, far = kit.raw("tcp")
    far.sendall(Raw(bytes(MIB), flags=MORE).encode() + Raw(length=MIB).encode())
    assert eventually(lambda: stream.receive() or stream.midway)
    assert eventually(lambda: stream.receive() or kit.pool.in_use >= 2 * MIB)
    stream.close()
    assert kit.pool.in_use == 0


def test_a_closed_stream_takes_no_memory_for_a_frame_like_the_last(kit: Any) -> None:
    stream, far = kit.raw("tcp")
    far.sendall(Raw(bytes(MIB)).encode())
    assert len(eventually(stream.receive)[0]) == MIB
    stream.close()
    for _ in range(2):
        with pytest.raises(Broken, match="this end closed"):
            stream.receive()
    assert kit.pool.in_use == 0


class Stuck:
    """A channel of the twin whose read takes until it is let go."""

    def __init__(self, fd: int) -> None:
        self.fd, self.inside, self.go = fd, threading.Event(), threading.Event()

    def give(self) -> None:
        """A stream takes it over."""

    def close(self) -> None:
        """The stream ends."""

    def recv(self, size: int) -> bytes:
        self.inside.set()
        assert self.go.wait(30)
        return os.read(self.fd, size)


def test_the_twin_keeps_a_descriptor_while_a_thread_reads_it() -> None:
    kit = Kit(importlib.import_module("transfer.transports.core.pure"))
    near, far = connected("tcp")
    fd = near.detach()
    channel = Stuck(fd)
    stream = kit.stream(fd, channel=channel)
    thread, ends = reader(stream)
    assert channel.inside.wait(30)
    before = os.fstat(fd).st_ino
    stream.close()
    with far:
        assert os.fstat(fd).st_ino == before, "the number may be another's"
        assert far.recv(1) == b"", "the peer sees the end"
        channel.go.set()
        thread.join(30)
    assert not thread.is_alive() and isinstance(ends[0], Broken)
    with pytest.raises(OSError):
        os.fstat(fd)
    kit.close()
