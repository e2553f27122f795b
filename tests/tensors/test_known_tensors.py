"""Tensors that look like one sent before: the core finds their header, and sends what it found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

import transfer
from tests.sockets.conftest import KeepingContext
from tests.tensors.pairs import Pair
from transfer.tensors import methods
from transfer.transports import core
from transfer.transports.errors import Again, Closed, NotATensor, NotSupported

SHAPES = [(), (1,), (6,), (2, 3), (3, 2), (1, 2, 3), (2,) * 9, (0,), (2, 0)]
DTYPES = ["f4", "<f8", ">f4", "i1", "u1", "?", "i8", "q", "c8", "S1", "S3", "U2", "M8[s]", "f4,i4", "V4"]


@pytest.fixture
def context():
    with KeepingContext() as made:
        yield made


@pytest.fixture
def pair(context):
    receiver = context.socket(transfer.PULL)
    receiver.bind("tcp://127.0.0.1:0")
    sender = context.socket(transfer.PUSH)
    sender.connect(receiver.last_endpoint)
    sender.sndtimeo = receiver.rcvtimeo = 10_000
    sender.wait_for_peers(1, 10)
    yield sender, receiver
    sender.close()
    receiver.close()


def arrays(dtype: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The same elements, in memory in several ways."""
    count = max(1, int(np.prod(shape)))
    raw = np.arange(count * np.dtype(dtype).itemsize, dtype="u1") % 2
    dense = np.frombuffer(raw.tobytes(), dtype)[: int(np.prod(shape))].reshape(shape)
    wide = np.zeros((*shape, 2), dtype)
    wide[..., 0] = dense
    return [
        dense.copy(),
        dense,  # read-only
        np.asfortranarray(dense),
        wide[..., 0],
        np.flip(dense).copy()[(slice(None, None, -1),) * len(shape)] if shape else dense,
    ]


def make_known(pair, array):
    """The second one was sent by the core alone."""
    sender, receiver = pair
    for _ in range(2):
        sender.send_tensor(array)
        assert same(receiver.recv_tensor(), array)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_arrives_as_the_first_did(pair, dtype):
    sender, receiver = pair
    for shape, _ in itertools.product(SHAPES, range(3)):
        for array in arrays(dtype, shape):
            sender.send_tensor(array)
            arrived = receiver.recv_tensor()
            assert same(arrived, array), (dtype, shape, array.strides)


def test_what_looks_alike_and_is_not(pair):
    """A known format and shape do not stand for another type."""
    sender, receiver = pair
    plain = np.ones((4, 4), np.float32)
    make_known(pair, plain)
    with pytest.raises(NotATensor):
        sender.send_tensor(np.ma.masked_array(plain, plain > 0))
    with pytest.raises(NotATensor):
        sender.send_tensor("text")
    for other in (memoryview(plain), plain.view(np.matrix), memoryview(bytes(16))):
        for _ in range(3):
            sender.send_tensor(other)
            assert same(receiver.recv_tensor(), np.asarray(other))


def test_options_hold_for_known_tensors_too(pair):
    sender, receiver = pair
    array = np.zeros((300, 300), np.float32)
    make_known(pair, array)
    before = receiver.bytes_received
    sender.compression = "lz4"
    sender.send_tensor(array)
    assert same(receiver.recv_tensor(), array)
    assert receiver.bytes_received - before < array.nbytes // 10
    sender.compression = None
    assert sender.send_tensor(array, track=True) is not None
    assert sender.send_tensor(array, copy=False).wait(10) is None
    sender.send_tensor(array, transfer.SNDMORE)
    sender.send_tensor(array)
    for _ in range(2):
        assert same(receiver.recv_tensor(), array)
    assert len(receiver.recv_multipart()) == 2
    counted = sender.messages_sent, sender.bytes_sent
    sender.send_tensor(array)
    assert (sender.messages_sent, sender.bytes_sent) == (counted[0] + 1, counted[1] + array.nbytes)


def test_errors_come_as_before(context, pair):
    sender, receiver = pair
    array = np.ones(30_000, np.float32)
    make_known(pair, array)
    with pytest.raises(NotSupported):
        receiver.send_tensor(array)
    with context.socket(transfer.PUSH) as nobody:
        with pytest.raises(Again):
            nobody.send_tensor(array, transfer.DONTWAIT)
        nobody.sndtimeo = 10
        with pytest.raises(Again):
            nobody.send_tensor(array)
    sender.sndhwm = 1
    with pytest.raises(Again):
        for _ in range(10_000):
            sender.send_tensor(array, transfer.DONTWAIT)
    sender.linger = 0
    sender.close()
    with pytest.raises(Closed):
        sender.send_tensor(array)


def test_the_memory_is_free_when_the_send_ends(pair):
    sender, receiver = pair
    data = bytearray(1 << 20)
    for number in range(5):
        data[:] = bytes([number]) * len(data)
        sender.send_tensor(data)
        data.append(1)  # nobody exports it any more
        del data[-1]
        data[:] = b"\xff" * len(data)
        assert receiver.recv_tensor().tobytes() == bytes([number]) * len(data)


def test_of_many_shapes_the_newest_are_known(pair):
    sender, receiver = pair
    for size in (*range(1, 1100), 1, 2, 3, 1099):
        sender.send_tensor(np.full(size, size, np.int32))
        assert receiver.recv_tensor()[0] == size


def test_subscribers_match_the_bytes_of_a_known_tensor(context):
    with context.socket(transfer.PUB) as pub, context.socket(transfer.SUB) as sub:
        pub.bind("tcp://127.0.0.1:0")
        sub.rcvtimeo = 10_000
        sub.subscribe(b"\x01")
        sub.connect(pub.last_endpoint)
        pub.wait_for_peers(1, 10)
        for first in (1, 2, 1, 2, 1):
            pub.send_tensor(np.array([first, 9], np.uint8))
        assert [sub.recv_tensor()[0] for _ in range(3)] == [1, 1, 1]


@pytest.mark.skipif(core.IMPLEMENTATION != "native", reason="the twin keeps no headers")
def test_a_known_tensor_is_not_exported_again(pair, monkeypatch):
    sender, receiver = pair
    array = np.ones((5, 7), np.float64)
    sender.send_tensor(array)

    def export(tensor):
        raise AssertionError("exported again")

    monkeypatch.setattr(methods, "export", export)
    sender.send_tensor(array)
    sender.send_tensor(array + 1, transfer.DONTWAIT)
    with pytest.raises(AssertionError):
        sender.send_tensor(array.T)
    receiver.recv_tensor()
    assert same(receiver.recv_tensor(), array)
    assert same(receiver.recv_tensor(), array + 1)


@given(st.lists(st.tuples(st.sampled_from(["f4", "f8", "i4", "?"]), st.lists(st.integers(0, 3), max_size=3))))
def test_any_mix_of_types_and_shapes(mix):
    with Pair(core) as pair:
        for dtype, shape in mix * 2:
            array = np.ones(shape, dtype)
            pair.sender.send_tensor(array)
            assert same(pair.receiver.recv_tensor(), array)
