"""Streams that are not closed: the flusher may write from them while they die. Shown by `make test-tsan`."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from tests.core.conftest import connected
from tests.core.raw_frames import PUSH, Raw

MIB = 1 << 20
pytestmark = pytest.mark.parametrize("core", ["native"], indirect=True)


def frame(data: bytes) -> tuple[Any, ...]:
    return (0, 0, None, None, data)


def read_all(far: socket.socket, into: bytearray) -> threading.Thread:
    def run() -> None:
        while part := far.recv(MIB):
            into.extend(part)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_stream_that_dies_while_it_is_written_sends_nothing_of_others(core: Any) -> None:
    flusher, pool = core.Flusher(), core.Pool()
    for turn in range(12):
        near, far = connected()
        near.setblocking(False)
        far.settimeout(20)
        stream = core.Stream(near.detach(), PUSH, flusher, pool, send_high_water_bytes=0)
        sent = b"%03d" % turn + b"x" * (2 * MIB)
        for _ in range(4):
            assert stream.send([frame(sent)])
        got = bytearray()
        reader = read_all(far, got)
        while len(got) < MIB * (1 + turn % 4):
            reader.join(0.001)
        expected = b"".join(Raw(sequence=number, data=sent).encode() for number in range(1, 5))
        del stream
        reader.join(20)
        assert not reader.is_alive()
        assert expected.startswith(bytes(got))
        far.close()
    flusher.close()
    pool.close()


def test_streams_may_die_while_their_flusher_is_closed(core: Any) -> None:
    for _ in range(20):
        flusher, pool = core.Flusher(), core.Pool()
        streams, fars = [], []
        for _ in range(20):
            near, far = connected()
            near.setblocking(False)
            fars.append(far)
            streams.append(core.Stream(near.detach(), PUSH, flusher, pool))
            assert streams[-1].send([frame(b"in time")])
        begin = threading.Event()

        def drop(streams: list[Any] = streams, begin: threading.Event = begin) -> None:
            begin.wait(20)
            while streams:
                streams.pop()

        thread = threading.Thread(target=drop, daemon=True)
        thread.start()
        begin.set()
        flusher.close()
        thread.join(20)
        assert not thread.is_alive()
        for far in fars:
            far.close()
        pool.close()
