"""Pool, lease, held buffer and frame."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import numpy
import pytest


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4096, 65536, 65537, 5 << 20])
def test_lease_is_writable_flat_and_aligned(core, nbytes):
    pool = core.Pool()
    lease = pool.lease(nbytes)
    assert isinstance(lease, core.Lease)
    view = memoryview(lease)
    assert (view.format, view.ndim, view.nbytes, view.readonly) == ("B", 1, nbytes, False)
    assert len(lease) == lease.nbytes == nbytes
    array = numpy.frombuffer(lease, numpy.uint8) if nbytes else numpy.empty(0, numpy.uint8)
    array[:] = 7
    assert bytes(view) == b"\7" * nbytes
    if nbytes:
        assert array.ctypes.data % 64 == 0
    del view, array, lease
    pool.close()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda one: one.__name__)
def test_owners_of_memory_cannot_be_duplicated(duplicate):
    """Both would free it. The Python core's memory belongs to Python's objects."""
    core = pytest.importorskip("transfer.transports.core.native", reason="the compiled core is not built")
    pool = core.Pool()
    for owner in (pool, pool.lease(100), core.HeldBuffer(bytearray(9)), core.Region(bytearray(9))):
        with pytest.raises(TypeError):
            duplicate(owner)
    pool.close()


def test_a_copy_of_a_frame_has_the_same_memory(core):
    frame = core.Frame(bytearray(b"payload"), flags=4, topic=b"t")
    other = copy.copy(frame)
    assert other.data is frame.data
    assert (other.flags, other.topic, bytes(other)) == (4, b"t", b"payload")


def test_memory_returns_when_the_last_view_dies(core):
    pool = core.Pool()
    lease = pool.lease(1 << 20)
    view = memoryview(lease)[10:20]
    array = numpy.frombuffer(view, numpy.uint8)
    assert pool.in_use >= 1 << 20
    del lease, view
    gc.collect()
    assert pool.in_use >= 1 << 20, "an array still looks at the memory"
    array[0] = 1
    del array
    gc.collect()
    assert pool.in_use == 0
    assert pool.cached >= 1 << 20
    pool.close()
    assert pool.cached == 0


def test_memory_is_reused(core):
    pool = core.Pool()
    first = pool.lease(100_000)
    address = numpy.frombuffer(first, numpy.uint8).ctypes.data
    del first
    second = pool.lease(99_000)
    assert numpy.frombuffer(second, numpy.uint8).ctypes.data == address
    del second
    pool.close()


def test_two_leases_never_overlap(core):
    pool = core.Pool()
    leases = [pool.lease(1000) for _ in range(50)]
    for number, lease in enumerate(leases):
        memoryview(lease)[:] = bytes([number]) * 1000
    assert all(bytes(lease) == bytes([number]) * 1000 for number, lease in enumerate(leases))
    del leases, lease
    pool.close()


def test_no_more_than_the_limit_is_cached(core):
    pool = core.Pool(limit=1 << 20)
    leases = [pool.lease(1 << 19) for _ in range(8)]
    del leases
    gc.collect()
    assert 0 < pool.cached <= 1 << 20
    pool.close()


def test_a_lease_outlives_its_closed_pool(core):
    pool = core.Pool()
    lease = pool.lease(1000)
    pool.close()
    memoryview(lease)[:] = bytes(1000)
    del lease
    gc.collect()
    assert pool.cached == 0


def test_pool_under_threads(core):
    pool = core.Pool()
    failures = []

    def work(mark: int) -> None:
        for size in range(1, 400):
            lease = pool.lease(size * 7)
            memoryview(lease)[:] = bytes([mark]) * (size * 7)
            if bytes(lease) != bytes([mark]) * (size * 7):
                failures.append(size)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.in_use == 0
    pool.close()


def test_held_bytearray_cannot_be_resized(core):
    data = bytearray(b"held")
    held = core.HeldBuffer(data)
    assert held.nbytes == 4
    with pytest.raises(BufferError):
        data.append(1)
    held.release()
    held.release()
    data.append(1)


def test_held_buffer_lets_go_when_it_dies(core):
    data = bytearray(8)
    held = core.HeldBuffer(data)
    with pytest.raises(BufferError):
        data.append(1)
    del held
    gc.collect()
    data.append(1)
    assert len(data) == 9


def test_held_buffer_takes_any_contiguous_memory(core):
    grid = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    assert core.HeldBuffer(grid).nbytes == 48
    assert core.HeldBuffer(b"read only").nbytes == 9
    assert core.HeldBuffer(numpy.empty((0, 3))).nbytes == 0
    with pytest.raises((BufferError, ValueError)):  # numpy answers with ValueError
        core.HeldBuffer(grid[:, ::2])
    with pytest.raises(TypeError):
        core.HeldBuffer(object())


def test_frame_fields_and_defaults(core):
    frame = core.Frame()
    assert (frame.data, frame.flags, frame.sequence, frame.socket_type) == (b"", 0, 0, 0)
    assert (frame.topic, frame.meta, frame.more, len(frame)) == (None, None, False, 0)
    frame = core.Frame(b"abc", flags=16, sequence=7, socket_type=5, topic=b"t", meta=b"m")
    assert frame.more and frame.bytes == bytes(frame) == b"abc" and len(frame) == 3
    assert bytes(frame.buffer) == b"abc"
    assert (frame.sequence, frame.socket_type, frame.topic, frame.meta) == (7, 5, b"t", b"m")


def test_frame_over_a_lease(core):
    pool = core.Pool()
    lease = pool.lease(5)
    memoryview(lease)[:] = b"12345"
    frame = core.Frame(lease)
    assert frame.bytes == b"12345" and type(frame.bytes) is bytes and len(frame) == 5
    frame.buffer[0] = 0x39
    assert frame.bytes == b"92345"
    del frame, lease
    pool.close()
