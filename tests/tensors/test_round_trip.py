"""Whatever is sent arrives: every dtype, every number of dimensions, every order of memory."""

from __future__ import annotations

import array
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from tests.tensors.pairs import CORES, Loop, Pair, load_core
from transfer.tensors import dtypes

torch = pytest.importorskip("torch", reason="pip install torch")

NUMPY_DTYPES = [
    *(row.numpy for row in dtypes.TABLE if row.numpy),
    *(getattr(ml_dtypes, row.name) for row in dtypes.TABLE if not row.numpy),
    ">i4", ">f8", "M8[ns]", "m8[D]", "S5", "U3", "V7", "g",
    np.dtype([("a", "<f4"), ("b", "<i2", (2, 3)), ("c", [("d", "|b1"), ("e", ">u8")])]),
    np.dtype({"names": ["x", "y"], "formats": ["<i1", "<f8"], "offsets": [0, 8], "itemsize": 24}),
]  # fmt: skip
TORCH_DTYPES = [getattr(torch, row.name) for row in dtypes.TABLE]
SHAPES: list[tuple[int, ...]] = [(), (0,), (7,), (3, 4), (0, 5), (2, 3, 4), (2, 1, 3, 2), (1,) * 32]


def numpy_of(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = (np.arange(count * dtype.itemsize) * 37 % 251).astype("u1")
    if dtype.kind == "b":
        raw %= 2
    if dtype.kind == "U":
        raw[:] = 0
    return np.frombuffer(bytes(raw), dtype=dtype).reshape(shape) if count else np.zeros(shape, dtype)


def same(one: np.ndarray, other: np.ndarray) -> None:
    assert type(one) is np.ndarray
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()
    assert one.flags.writeable


def base_of(tensor: np.ndarray) -> Any:
    while isinstance(tensor, np.ndarray):
        tensor = tensor.base
    return tensor


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_every_numpy_dtype(loop: Loop, dtype: Any, shape: tuple[int, ...]) -> None:
    sent = numpy_of(dtype, shape)
    loop.send_tensor(sent)
    same(loop.recv_tensor(), sent)
    out = np.empty_like(sent)
    loop.send_tensor(sent)
    assert loop.recv_tensor(out=out) is out
    same(out, sent)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_torch_dtype(loop: Loop, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = torch.arange(count).mul(37).remainder(2 if dtype == torch.bool else 251).to(torch.uint8)
    sent = raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    loop.send_tensor(sent)
    got = loop.recv_tensor(like=torch)
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert got.reshape(-1).view(torch.uint8).equal(sent.reshape(-1).view(torch.uint8))
    out = torch.empty_like(sent)
    loop.send_tensor(sent)
    assert loop.recv_tensor(out=out) is out
    assert out.reshape(-1).view(torch.uint8).equal(sent.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("checksum", [False, True], ids=["plain", "checksum"])
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "lz4"])
def test_on_a_real_core(core: str, checksum: bool, compress: bool) -> None:
    with Pair(load_core(core), checksum=checksum, compress=compress) as pair:
        for dtype in NUMPY_DTYPES:
            for shape in [(), (0, 2), (5, 3), (200, 100)]:
                sent = numpy_of(dtype, shape)
                pair.sender.send_tensor(sent)
                same(pair.receiver.recv_tensor(), sent)
                out = np.empty_like(sent)
                pair.sender.send_tensor(sent)
                assert pair.receiver.recv_tensor(out=out) is out
                same(out, sent)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Arrays with gaps, turned axes, negative strides, broadcast axes."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=5))
    kinds = st.sampled_from(["<f4", "|i1", "<u2", "<c16", ">i8", "|b1"])
    whole = draw(hnp.arrays(draw(kinds), shape, elements=draw(st.just(None))))
    for axis in range(whole.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1]))
        whole = whole[(slice(None),) * axis + (slice(None, None, step),)]
    whole = whole.transpose(draw(st.permutations(range(whole.ndim))))
    if draw(st.booleans()):
        whole = np.broadcast_to(whole, (2, *whole.shape))
    return whole


@given(views())
def test_any_view_of_memory(view: np.ndarray) -> None:
    loop = Loop()
    loop.send_tensor(view)
    got = loop.recv_tensor()
    same(got, view)
    loop.send_tensor(view)
    torn = np.empty_like(view, subok=False)
    same(loop.recv_tensor(out=torn), view)
    if not view.dtype.str.startswith(">"):
        loop.send_tensor(view)
        same(loop.recv_tensor(like=torch).numpy(), view)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)], ids=str)
def test_the_order_of_axes_in_memory_is_kept(loop: Loop, order: tuple[int, ...]) -> None:
    sent = np.arange(24, dtype="f4").reshape(2, 3, 4).transpose(order)
    loop.send_tensor(sent)
    assert loop.recv_tensor().strides == sent.strides
    turned = torch.arange(24.0).view(2, 3, 4).permute(order)
    loop.send_tensor(turned)
    got = loop.recv_tensor(like=torch)
    assert got.stride() == turned.stride()
    assert got.equal(turned)


def test_channels_last_is_kept(loop: Loop) -> None:
    sent = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    loop.send_tensor(sent)
    got = loop.recv_tensor(like=torch)
    assert got.equal(sent)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (b"abc", np.frombuffer(b"abc", "u1")),
        (bytearray(b"abcd"), np.frombuffer(b"abcd", "u1")),
        (memoryview(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)),
        (memoryview(np.arange(6.0).reshape(2, 3).T), np.arange(6.0).reshape(2, 3).T),
        (memoryview(bytes(10))[::3], np.zeros(4, "u1")),
        (array.array("d", [1, 2]), np.array([1.0, 2.0])),
        (array.array("H", [1, 2]), np.array([1, 2], "u2")),
        ((ctypes.c_int32 * 3)(1, 2, 3), np.array([1, 2, 3], "i4")),
        (memoryview(np.array([True, False])), np.array([True, False])),
        (memoryview(np.array([1j, 2])), np.array([1j, 2])),
        (np.float32(3.5), np.array(3.5, "f4")),
        (np.bool_(True), np.array(True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_buffer_protocol_and_scalars(loop: Loop, thing: Any, expected: np.ndarray) -> None:
    loop.send_tensor(thing)
    same(loop.recv_tensor(), np.ascontiguousarray(expected).reshape(expected.shape))


class OnlyDLPack:
    """What another library's tensor looks like."""

    def __init__(self, tensor: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.tensor = tensor
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_dlpack(loop: Loop) -> None:
    loop.send_tensor(OnlyDLPack(torch.arange(6.0).view(2, 3)))
    same(loop.recv_tensor(), np.arange(6, dtype="f4").reshape(2, 3))


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: torch.randn(3, 4, requires_grad=True),
        lambda: torch.nn.Parameter(torch.randn(5)),
        lambda: torch.randn(3, 4, requires_grad=True) * 2,
        lambda: torch.randn(4, dtype=torch.complex64).conj(),
        lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(6, 6)[::2, 1:4],
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(4, 4, dtype=torch.bfloat16, requires_grad=True),
        lambda: torch.randn(4, 6).bfloat16()[:, ::2],
    ],
    ids=[
        "leaf",
        "parameter",
        "graph",
        "conjugate",
        "negative",
        "gaps",
        "expanded",
        "bfloat16",
        "bfloat16 gaps",
    ],
)
def test_torch_tensors_that_are_not_plain(loop: Loop, prepare: Any) -> None:
    sent = prepare()
    for _ in range(2):  # the second time goes by what was remembered
        loop.send_tensor(sent)
        got = loop.recv_tensor(like=sent)
        assert isinstance(got, torch.Tensor)
        assert got.dtype == sent.dtype
        assert got.equal(sent.detach().resolve_conj().resolve_neg())
        assert not got.requires_grad


def test_numpy_and_torch_meet(loop: Loop) -> None:
    loop.send_tensor(torch.arange(4, dtype=torch.bfloat16))
    assert loop.recv_tensor().dtype == ml_dtypes.bfloat16
    loop.send_tensor(np.arange(4, dtype=ml_dtypes.float8_e5m2))
    got = loop.recv_tensor(like=torch)
    assert got.dtype == torch.float8_e5m2
    assert got.float().tolist() == [0, 1, 2, 3]


def test_dense_memory_is_not_copied_on_the_way_out() -> None:
    from transfer.tensors.export import export

    for sent in (
        np.zeros((64, 256), "f4"),
        np.zeros((64, 256), "f4").T,
        np.zeros((8, 16, 32), ml_dtypes.bfloat16).transpose(1, 0, 2),
        np.zeros(100, "M8[s]"),
        np.zeros(100, [("a", "<f4"), ("b", "<i8")]),
    ):
        assert np.shares_memory(export(sent)[2], sent)
    for tensor in (torch.zeros(64, 256), torch.zeros(4, 4).bfloat16(), torch.zeros(2, 3, 4).permute(1, 2, 0)):
        assert export(tensor)[2].__array_interface__["data"][0] == tensor.data_ptr()
    memory = bytearray(100)
    assert export(memory)[2] is memory
    view = np.zeros((4, 4))[:, :2]
    assert not np.shares_memory(export(view)[2], view)


def test_what_arrives_owns_its_memory(pair: Pair) -> None:
    sent = np.arange(50_000, dtype="f4")
    for size in (10, 50_000):
        pair.sender.send_tensor(sent[:size])
        got = pair.receiver.recv_tensor()
        assert base_of(got) is not None
        assert pair.pool.in_use > 0
        part = got[::2]
        del got
        part += 1  # the view alone keeps the lease
        assert part.tolist() == (sent[:size:2] + 1).tolist()
        del part
        assert pair.pool.in_use == 0
        pair.sender.send_tensor(torch.from_numpy(sent[:size].copy()))
        tensor = pair.receiver.recv_tensor(like=torch)
        tensor = tensor[1:]
        tensor.add_(1)
        assert tensor[0] == 2
        del tensor
        assert pair.pool.in_use == 0


def test_memory_in_flight_is_exported() -> None:
    with Pair(load_core("pure")) as pair:
        memory = bytearray(8 << 20)  # more than the kernel takes
        pair.sender.send_tensor(memory, copy=False)
        with pytest.raises(BufferError):
            memory.extend(b"more")
        assert pair.receiver.recv_tensor().nbytes == len(memory)
