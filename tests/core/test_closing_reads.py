"""A stream that is closed while another thread is in a read of it."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.core.raw import Raw, eventually
from transports.errors import Broken, ProtocolError

MIB = 1 << 20


@contextmanager
def flooded(far: socket.socket, size: int) -> Iterator[None]:
    """The payload of a large frame comes faster than it can be read, until the connection ends: without a
    copy, from pages that are there already."""
    far.settimeout(None)  # `os.sendfile` waits for room; the stream's end ends it
    with open(os.memfd_create("flood"), "wb+") as file:
        file.truncate(16 * MIB)
        file.write(b"\xff" * 16 * MIB)
        file.flush()

        def pump() -> None:
            left = size
            try:
                while left:
                    left -= os.sendfile(far.fileno(), file.fileno(), 0, min(left, 16 * MIB))
            except OSError:
                return

        far.sendall(Raw(length=size).encode())
        thread = threading.Thread(target=pump, daemon=True)
        thread.start()
        yield
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
