"""Tensors on a GPU between sockets of one process: the receiver gets the tensor itself, or a copy there."""

from __future__ import annotations

import pytest

from tests.gpu.conftest import sockets_over
from tests.gpu.test_mapped import PATIENCE, SLEEP

torch = pytest.importorskip("torch")


@pytest.fixture
def pair():
    with sockets_over("inproc") as made:
        yield made


def test_the_tensor_itself(pair):
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda._sleep(SLEEP)
    tensor.fill_(7)
    tracker = pair.push.send_tensor(tensor, copy=False)
    received = pair.pull.recv_tensor(device="cuda:0", like="torch")
    assert received.data_ptr() == tensor.data_ptr()
    assert bool((received == 7).all())
    torch.cuda._sleep(20 * SLEEP)
    received.fill_(8)
    del received
    assert not tracker.done, "the receiver's work on it still runs"
    tracker.wait(PATIENCE)
    assert bool((tensor == 8).all())


def test_a_copy_in_the_order_of_streams(pair):
    side = torch.cuda.Stream()
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    kept = []
    for number in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP)
            tensor.fill_(number)
            pair.push.send_tensor(tensor)
            tensor.fill_(99)
        kept.append(pair.pull.recv_tensor(device="cuda:0", like="torch"))
    assert [float(one.min()) for one in kept] == [float(one.max()) for one in kept] == list(range(20))


def test_memory_comes_back(pair):
    tensor = torch.ones(16 << 20, device="cuda")
    pair.push.send_tensor(tensor)
    pair.pull.recv_tensor(device="cuda:0", like="torch")
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    for _ in range(50):
        pair.push.send_tensor(tensor)
        received = pair.pull.recv_tensor(device="cuda:0", like="torch")
        assert float(received[-1]) == 1
    assert torch.cuda.memory_reserved() <= before + 4 * tensor.nbytes


def test_cupy(pair):
    cupy = pytest.importorskip("cupy")
    array = cupy.arange(1 << 20, dtype="f4")
    tracker = pair.push.send_tensor(array, copy=False)
    received = pair.pull.recv_tensor(device=0, like="cupy")
    assert received.data.ptr == array.data.ptr
    del received
    tracker.wait(PATIENCE)
    pair.push.send_tensor(array)
    array[...] = 0
    assert bool((pair.pull.recv_tensor(device=0, like="cupy") == cupy.arange(1 << 20, dtype="f4")).all())
