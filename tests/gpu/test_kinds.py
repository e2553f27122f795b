"""Every dtype, layout and library from a GPU and to it, and what is known of each kind of memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import transfer
from transfer.tensors import gpu_sending
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import RegistrationError, TensorMismatch

torch = pytest.importorskip("torch")

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float64",
    "int8",
    "int64",
    "uint8",
]
DTYPES += ["bool", "complex64", "complex128"]


def made(dtype, shape=(257, 129)):
    """Random bytes as a tensor of this dtype."""
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.rand(shape, device="cuda") > 0.5
    return torch.randint(-9, 9, shape, device="cuda").to(kind)


def same(a, b):
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    assert a.dtype == b.dtype and a.shape == b.shape
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_to_the_host_and_to_a_device(sockets, dtype):
    tensor = made(dtype)
    assert same(sockets.there(tensor, like="torch"), tensor)
    out = torch.zeros_like(tensor)
    assert sockets.there(tensor, out=out) is out and same(out, tensor)


LAYOUTS = {
    "channels_last": lambda: made("float32", (4, 3, 32, 32)).to(memory_format=torch.channels_last),
    "transposed": lambda: made("float32").t(),
    "gaps": lambda: made("float32")[::2, 1::3],
    "scalar": lambda: made("float32", ()),
    "one": lambda: made("int8", (1,)),
    "empty": lambda: made("float32", (0, 5)),
    "gradient": lambda: made("float32").requires_grad_(),
    "parameter": lambda: torch.nn.Linear(100, 300, device="cuda").weight,
    "conjugate": lambda: made("complex64").conj(),
    "negative": lambda: made("complex64").conj().imag,
    "16 MiB and one": lambda: made("uint8", ((16 << 20) + 1,)),
    "offset": lambda: made("uint8", ((9 << 20) + 7,))[3:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_to_the_host_and_to_a_device(sockets, layout):
    tensor = LAYOUTS[layout]()
    assert same(sockets.there(tensor, like="torch"), tensor)
    out = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cuda")
    assert sockets.there(tensor, out=out) is out and same(out, tensor)
    back = sockets.there(tensor, like=tensor)
    assert back.is_cuda and same(back, tensor)


def test_an_out_that_does_not_fit(tcp):
    tensor = made("float32")
    for wrong in (
        torch.zeros(5, device="cuda"),
        torch.zeros(tensor.shape, device="cuda", dtype=torch.float64),
    ):
        tcp.push.send_tensor(tensor)
        with pytest.raises(TensorMismatch):
            tcp.pull.recv_tensor(out=wrong)
        assert same(tcp.pull.recv_tensor(like="torch"), tensor), "it is still there"


def test_cupy_both_ways(sockets):
    cupy = pytest.importorskip("cupy")
    for array in (
        cupy.arange(300_000, dtype="f4").reshape(300, 1000),
        cupy.asfortranarray(cupy.arange(30_000.0).reshape(100, 300)),
        cupy.arange(10_000)[::3],
        cupy.zeros((0, 3), "i2"),
    ):
        arrived = sockets.there(array)
        assert arrived.shape == array.shape and (arrived == cupy.asnumpy(array)).all()
        out = cupy.zeros_like(array)
        assert sockets.there(array, out=out) is out and bool((out == array).all())


def test_a_state_dict(sockets):
    model = torch.nn.Sequential(*(torch.nn.Linear(n, n + 40, device="cuda") for n in range(20, 1000, 40)))
    state = {name: value.bfloat16() for name, value in model.state_dict().items()}
    sockets.push.send_tensors(state, meta={"step": 7})
    arrived, meta = sockets.pull.recv_tensors(like="torch")
    assert meta == {"step": 7} and all(same(arrived[name], state[name]) for name in state)
    out = {name: torch.zeros_like(value) for name, value in state.items()}
    sockets.push.send_tensors(state)
    sockets.pull.recv_tensors(out=out)
    assert all(same(out[name], state[name]) for name in state)


def test_what_is_registered():
    weight = torch.nn.Linear(1000, 1000, device="cuda").weight
    with transfer.Context() as context, context.register(weight) as region:
        assert not region.transports and "rdma: " in region.reason, "no card here; the way there is known"


# --- kinds of memory -----------------------------------------------------------------------------

WITH_CUDA = Capabilities(device_memory=True)


def test_memory_of_cuda_malloc():
    memory = gpu.described(made("float32"))
    assert memory.kind == gpu.CUDA and memory.index == 0
    assert gpu.is_virtual(cuda.load().attributes(memory.pointer)) is False
    assert gpu_sending.way_of(made("float32"), WITH_CUDA).route is gpu.GpuRoute.POINTER


def test_memory_of_a_pool():
    cupy = pytest.importorskip("cupy")
    pool = cupy.cuda.MemoryAsyncPool()
    with cupy.cuda.using_allocator(pool.malloc):
        array = cupy.zeros(1 << 20, "u1")
    attributes = cuda.load().attributes(gpu.described(array).pointer)
    assert attributes[gpu.MEMPOOL_HANDLE] and not attributes[gpu.IS_LEGACY_IPC_CAPABLE]
    assert gpu.is_virtual(attributes) is False


EXPANDABLE = """
import torch
from transfer.tensors import gpu_sending
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
tensor = torch.zeros(1 << 20, device="cuda")
attributes = cuda.load().attributes(gpu.described(tensor).pointer)
print(attributes, gpu.is_virtual(attributes))
print(gpu_sending.way_of(tensor, Capabilities(device_memory=True)).route)
"""


def test_memory_of_expandable_segments():
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(
        [sys.executable, "-c", EXPANDABLE], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("True") and lines[1] == "GpuRoute.STAGING", done.stdout


def test_managed_memory_is_read_after_the_kernel_that_writes_it(tcp):
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        array = cupy.zeros(4 << 20, "u1")
    for step in range(1, 20):
        for _ in range(50):
            array += 1
        assert (tcp.there(array) == step * 50 % 256).all()


def test_pinned_host_memory(sockets):
    tensor = torch.arange(1 << 20).pin_memory()
    assert same(sockets.there(tensor, like="torch"), tensor)
    out = torch.zeros(1 << 20, dtype=torch.int64).pin_memory()
    sockets.there(tensor.cuda(), out=out)
    assert same(out, tensor)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 2 << 20), (4096, 1 << 20), (512, 100_001)])
def test_a_dma_buf_or_the_drivers_reason(offset, nbytes):
    tensor = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")[offset : offset + nbytes]
    driver = cuda.load()
    before = len(os.listdir("/proc/self/fd"))
    if not driver.attribute(0, gpu.DMA_BUF_SUPPORTED):
        with pytest.raises(RegistrationError, match="dma-buf"):
            driver.export(tensor.data_ptr(), nbytes)
    else:
        descriptor, place = driver.export(tensor.data_ptr(), nbytes)
        assert "dmabuf" in os.readlink(f"/proc/self/fd/{descriptor}") and place < 2 << 21
        os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before
