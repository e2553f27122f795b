"""What only the twin has: it runs where there is no eventfd."""

from __future__ import annotations

import os
import select

import pytest

from tests.core.conftest import Kit
from tests.core.raw_frames import Raw, eventually, plain
from transfer.transports.core import pure
from transfer.transports.core.buffers import size_class
from transfer.transports.core.pure.wake import Wake


@pytest.fixture(params=["eventfd", "pipe"])
def way(request, monkeypatch):
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return request.param


def test_wake(way):
    wake = Wake()
    for _ in range(2):
        wake.set()
        wake.set()
        assert select.select([wake], [], [], 0)[0]
        wake.clear()
        wake.clear()
        assert not select.select([wake], [], [], 0)[0]
    wake.close()
    wake.close()
    wake.set()
    wake.clear()


def test_a_conversation(way):
    kit = Kit(pure)
    try:
        near, far = kit.pair("tcp", buffer=4096, credits=True)
        pusher, puller = kit.pusher(near), kit.puller(far)
        puller.fileno()
        told = []
        for number in range(200):
            pusher._send_frames([plain(bytearray(b"%03d" % number))], 1000, hold=True, released=told.append)
        assert [puller.recv() for _ in range(200)] == [b"%03d" % number for number in range(200)]
        eventually(lambda: kit.flusher.reap() or len(told) == 200)
        eventually(lambda: near.receive())
    finally:
        kit.close()


def test_what_is_consumed_while_a_credit_is_written_is_told_by_the_next():
    kit = Kit(pure)
    try:
        near, far = kit.pair(credits=True)
        for text in (b"first", b"second"):
            near.send([plain(text)])
        near.flush()
        write, writes = far._write, []

        def write_slowly():
            if not writes:
                writes.append(far.receive())
            write()

        far._write = write_slowly
        assert far.receive()[0].data == b"first"
        credit = eventually(near.receive)
        assert credit[0].data[1:] == (1).to_bytes(8, "little")
        assert writes[0][0].data == b"second"
        credit = eventually(near.receive)
        assert credit[0].data[1:] == (2).to_bytes(8, "little")
    finally:
        kit.close()


def test_a_block_is_at_most_a_quarter_too_large():
    sizes = [n + d for n in (1 << p for p in range(9, 40)) for d in (-1, 0, 1, n // 3)]
    for size in sizes:
        assert size <= size_class(size) <= max(256, size * 1.25 + 4), size
        assert size_class(size_class(size)) == size_class(size)


def test_leases_of_many_lengths_do_not_pile_up_classes():
    pool = pure.Pool()
    for size in range(1, 3000):
        assert len(pool.lease(size)) == size
    assert pool.in_use == 0
    pool.close()


def test_a_stalled_large_frame_costs_nothing_after_the_end():
    kit = Kit(pure)
    try:
        stream, far = kit.raw()
        far.sendall(Raw(length=10 << 20).encode() + bytes(1000))
        assert stream.receive() is None
        assert kit.pool.in_use >= 10 << 20
        far.close()
        with pytest.raises(Exception, match="inside a message"):
            eventually(stream.receive)
        assert kit.pool.in_use == 0
    finally:
        kit.close()
