"""`recv_tensor`: into the caller's memory, refusals that leave the message unread, bad peers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.tensors.pairs import DONTWAIT, Loop, Pair, compressed
from transfer.tensors.export import export
from transfer.tensors.header import unpack
from transfer.transports.errors import (
    Again,
    NotATensor,
    NotSupported,
    ProtocolError,
    TensorMismatch,
    UsageError,
)

torch = pytest.importorskip("torch", reason="pip install torch")

X = np.arange(60_000, dtype="f4").reshape(200, 300)


@pytest.mark.parametrize("size", [1, 1000, 20_000, 400_000])
def test_out_is_read_into_directly(pair: Pair, size: int) -> None:
    sent = np.arange(size, dtype="f8")
    for out in (np.zeros(size), torch.zeros(size, dtype=torch.float64), bytearray(8 * size)):
        pair.sender.send_tensor(sent)
        assert pair.receiver.recv_tensor(out=out) is out
        assert pair.pool.in_use == 0
        assert np.frombuffer(memoryview(np.asarray(out)), "f8").tolist() == sent.tolist()


def test_out_in_another_order_is_filled(pair: Pair) -> None:
    for out in (np.zeros((300, 200), "f4").T, np.zeros((400, 300), "f4")[::2], np.zeros((200, 300), "f4")):
        for sent in (X, np.asfortranarray(X)):
            pair.sender.send_tensor(sent)
            assert pair.receiver.recv_tensor(out=out) is out
            assert np.array_equal(out, X)
    turned = torch.zeros(300, 200).T
    parameter = torch.nn.Parameter(torch.zeros(200, 300))
    for tensor in (turned, parameter, torch.zeros(200, 600)[:, ::2]):
        pair.sender.send_tensor(X)
        assert pair.receiver.recv_tensor(out=tensor) is tensor
        assert np.array_equal(tensor.detach().numpy(), X)
    assert parameter.requires_grad


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((200, 301), "f4"),
        np.zeros((300, 200), "f4"),
        np.zeros(60_000, "f4"),
        np.zeros((200, 300), "f8"),
        np.zeros((200, 300), "i4"),
        torch.zeros(200, 300, dtype=torch.float64),
        torch.zeros(300, 200),
        bytearray(10),
    ],
    ids=lambda out: f"{type(out).__name__} {getattr(out, 'dtype', '')} {getattr(out, 'shape', len(out))}",
)
def test_a_mismatch_leaves_the_message_unread(pair: Pair, out: Any) -> None:
    for sent in (X, X[:1, :1]):
        pair.sender.send_tensor(sent)
        with pytest.raises(TensorMismatch):
            pair.receiver.recv_tensor(out=out)
        assert np.array_equal(pair.receiver.recv_tensor(), sent)


def overlapping() -> list[Any]:
    lib = np.lib.stride_tricks
    return [
        torch.zeros(1, 3).expand(2, 3),
        lib.as_strided(np.zeros(4), (2, 3), (8, 8)),
        lib.as_strided(np.zeros(6), (2, 3), (0, 8)),
    ]


@pytest.mark.parametrize("out", overlapping(), ids=["torch", "a window", "repeated"])
def test_memory_whose_elements_lie_on_one_another_is_refused(loop: Loop, out: Any) -> None:
    sent = np.arange(6.0).reshape(2, 3).astype(np.float32 if isinstance(out, torch.Tensor) else np.float64)
    loop.send_tensor(sent)
    with pytest.raises(TensorMismatch, match="overlap in memory"):
        loop.recv_tensor(out=out)
    assert np.array_equal(loop.recv_tensor(), sent)


def test_views_with_gaps_and_in_any_order_of_axes_are_taken(loop: Loop) -> None:
    base, more = np.zeros((8, 3, 10)), torch.zeros(8, 3, 10, dtype=torch.float64)
    sent = np.arange(12.0).reshape(2, 3, 2)
    for whole, turned in ((base, base.transpose(2, 1, 0)), (more, more.permute(2, 1, 0))):
        for out in (whole[1:8:4, :, 3:9:4], turned[:10:8, :, :2]):
            loop.send_tensor(sent)
            loop.recv_tensor(out=out)
            assert np.array_equal(np.asarray(out), sent)


def test_read_only_memory_is_refused_before_anything_is_received(loop: Loop) -> None:
    loop.send_tensor(X)
    fixed = np.zeros_like(X)
    fixed.flags.writeable = False
    for out in (fixed, bytes(X.nbytes), memoryview(bytes(X.nbytes))):
        with pytest.raises(TensorMismatch):
            loop.recv_tensor(out=out)
    for out in ("text", 3, [1.0]):
        with pytest.raises(NotATensor):
            loop.recv_tensor(out=out)
    assert np.array_equal(loop.recv_tensor(), X)


@pytest.mark.parametrize("payload", [b"plain", b"x" * 200_000], ids=["small", "large"])
def test_a_message_that_is_no_tensor_stays_unread(pair: Pair, payload: bytes) -> None:
    pair.sender.send(payload)
    for receive in (pair.receiver.recv_tensor, pair.receiver.recv_tensors):
        with pytest.raises(TensorMismatch, match="no tensor"):
            receive()
    with pytest.raises(TensorMismatch, match="no tensor"):
        pair.receiver.recv_tensor(out=np.zeros(3))
    assert pair.receiver.recv() == payload


def test_a_dict_is_no_tensor_and_a_tensor_no_dict(pair: Pair) -> None:
    pair.sender.send_tensors({"a": X})
    with pytest.raises(TensorMismatch, match="recv_tensors"):
        pair.receiver.recv_tensor()
    assert np.array_equal(pair.receiver.recv_tensors()[0]["a"], X)
    pair.sender.send_tensor(X[:2])
    with pytest.raises(TensorMismatch, match="recv_tensor\\(\\)"):
        pair.receiver.recv_tensors()
    assert np.array_equal(pair.receiver.recv_tensor(), X[:2])


def test_a_tensor_among_other_parts_is_refused(pair: Pair) -> None:
    flags, header, buffer = export(X)
    pair.sender._send_frames([(flags, 0, None, header, buffer), (0, 0, None, None, b"more")], 1000)
    with pytest.raises(TensorMismatch):
        pair.receiver.recv_tensor()
    assert [len(frame) for frame in pair.receiver._recv_message(1000)[1]] == [X.nbytes, 4]


def test_two_tensors_in_one_message_are_refused(loop: Loop) -> None:
    flags, header, buffer = export(X)
    loop.messages.append([(flags, 1, None, header, buffer.tobytes())] * 2)
    with pytest.raises(TensorMismatch, match="2 parts"):
        loop.recv_tensor()


def test_nothing_there(pair: Pair) -> None:
    with pytest.raises(Again):
        pair.receiver.recv_tensor(DONTWAIT)


@pytest.mark.parametrize("like", [np, "numpy", np.ndarray, np.zeros(1), None], ids=repr)
def test_like_numpy(loop: Loop, like: Any) -> None:
    loop.send_tensor(torch.ones(3))
    assert type(loop.recv_tensor(like=like)) is np.ndarray


@pytest.mark.parametrize("like", [torch, "torch", torch.Tensor, torch.zeros(1)], ids=repr)
def test_like_torch(loop: Loop, like: Any) -> None:
    loop.send_tensor(np.ones(3))
    assert type(loop.recv_tensor(like=like)) is torch.Tensor


def test_like_an_array_library(loop: Loop) -> None:
    class Namespace:
        @staticmethod
        def from_dlpack(array: np.ndarray) -> tuple[str, np.ndarray]:
            return "theirs", array

    class Theirs:
        def __array_namespace__(self) -> type:
            return Namespace

    loop.send_tensor(np.ones(3))
    kind, array = loop.recv_tensor(like=Theirs())
    assert kind == "theirs"
    assert array.tolist() == [1, 1, 1]
    loop.send_tensor(torch.ones(3).bfloat16())
    with pytest.raises(TensorMismatch, match="bfloat16"):
        loop.recv_tensor(like=Theirs())
    assert len(loop.messages) == 1


@pytest.mark.parametrize(
    "like", [3, object(), int, "jax", sys], ids=["number", "object", "type", "name", "module"]
)
def test_like_nothing_known(loop: Loop, like: Any) -> None:
    loop.send_tensor(X)
    with pytest.raises(NotATensor):
        loop.recv_tensor(like=like)
    assert len(loop.messages) == 1


def test_torch_has_no_structures(loop: Loop) -> None:
    loop.send_tensor(np.zeros(3, "M8[s]"))
    with pytest.raises(TensorMismatch, match="torch has no"):
        loop.recv_tensor(like=torch)
    assert loop.recv_tensor().dtype == "M8[s]"


def test_without_ml_dtypes_the_error_says_what_to_do(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    from transfer.tensors import build

    loop.send_tensor(torch.ones(3).bfloat16())
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    build.known_recipes.clear()
    with pytest.raises(NotSupported, match="ml_dtypes"):
        loop.recv_tensor()
    assert loop.recv_tensor(like=torch).tolist() == [1, 1, 1]


def nested(layout: Any) -> Any:
    """Of parts of two lengths. PyTorch warns of its prototype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def fake() -> Any:
    """As `torch.compile` passes them through a program: there is no memory behind it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize(
    "thing",
    [
        "text", 3, 2.5, None, [1, 2], {}, object(), np, int,
        np.array([object()]), np.array(["a", None], dtype=object), np.zeros(3, [("a", "O")]),
        np.zeros(2, "V0"),
        np.ma.masked_array([1, 2], [True, False]),
        torch.eye(3).to_sparse(), torch.empty(3, device="meta"), nested(torch.strided), nested(torch.jagged),
        fake(),
    ],
    ids=lambda thing: f"{type(thing).__name__} {str(thing)[:12]}",
)  # fmt: skip
def test_what_is_no_tensor(loop: Loop, thing: Any) -> None:
    with pytest.raises(NotATensor):
        loop.send_tensor(thing)
    with pytest.raises(NotATensor):
        loop.send_tensors({"fine": X, "wrong": thing})
    assert not loop.messages


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_quantized_tensors_are_refused(loop: Loop) -> None:
    with pytest.raises(NotATensor, match="quantized"):
        loop.send_tensor(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8))


def test_memory_on_a_device_is_refused_with_a_hint(loop: Loop) -> None:
    class OnDevice:
        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("not to be read")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (14, 0)  # oneAPI

    with pytest.raises(NotATensor, match="host"):
        loop.send_tensor(OnDevice())


def test_topics(loop: Loop) -> None:
    loop.send_tensor(X, topic="weights")
    loop.send_tensors({"x": X}, topic=b"weights")
    assert [message[0][2] for message in loop.messages] == [b"weights", b"weights"]
    with pytest.raises(UsageError, match="topic"):
        loop.send_tensor(X, topic=b"x" * 70_000)


# --- bad peers --------------------------------------------------------------------------------


def test_shape_and_length_disagree(loop: Loop) -> None:
    flags, header, _ = export(X)
    for length in (0, X.nbytes - 1, X.nbytes + 1, 2 * X.nbytes):
        for options in ({}, {"out": np.empty_like(X)}, {"like": torch}):
            loop.messages.clear()
            loop.messages.append([(flags, 1, None, header, bytes(length))])
            with pytest.raises(ProtocolError) as caught:
                loop.recv_tensor(**options)
            assert caught.value.reason == "shape"


@pytest.mark.parametrize("flags", [0, 1, 64, 65])
def test_flags_must_name_the_header_that_is_there(loop: Loop, flags: int) -> None:
    right, header, data = export(X)
    loop.messages.append([(flags, 1, None, header, data.tobytes())])
    if flags == right:
        assert np.array_equal(loop.recv_tensor(), X)
        return
    with pytest.raises(ProtocolError) as caught:
        loop.recv_tensor()
    assert caught.value.reason == "tensor"


def test_compressed_tensors() -> None:
    loop = Loop(compress=True)
    for options in ({}, {"out": np.empty_like(X)}, {"like": torch}, {"out": bytearray(X.nbytes)}):
        loop.send_tensor(np.zeros_like(X))
        assert loop.messages[0][0][0] & 128
        got = loop.recv_tensor(**options)
        assert not np.frombuffer(np.asarray(got).tobytes(), "u1").any()


def test_a_bomb_is_refused(loop: Loop) -> None:
    flags, header, _ = export(X)
    frame = compressed((flags, 1, None, header, bytes(100 * X.nbytes)))
    loop.messages.append([frame])
    with pytest.raises(ProtocolError) as caught:
        loop.recv_tensor()
    assert caught.value.reason == "compression"


@st.composite
def doubtful(draw: st.DrawFn) -> tuple[int, bytes | None, bytes]:
    """(flags, header, data): any bytes, or a good tensor of 8 bytes with up to two of its bytes changed."""
    if draw(st.booleans()):
        flags = draw(st.sampled_from([0, 1, 64, 65, 129, 193]))
        return flags, draw(st.none() | st.binary(max_size=120)), draw(st.binary(max_size=64))
    flags, header, data = export(np.arange(2, dtype="f4"))
    changed = bytearray(header)
    for _ in range(draw(st.integers(0, 2))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    flags = draw(st.sampled_from([flags, flags, 0, 64, 65]))
    return flags, bytes(changed), bytes(data)


@given(doubtful(), st.sampled_from(["numpy", "out", "torch"]))
def test_what_is_doubtful_is_refused_with_a_typed_error_or_is_what_its_header_says(
    frame: tuple[int, bytes | None, bytes], how: str
) -> None:
    flags, meta, data = frame
    loop = Loop()
    loop.messages.append([(flags, 1, None, meta, data)])
    out = bytearray(8)
    refused: ProtocolError | TensorMismatch | None = None
    try:
        got = loop.recv_tensor(**{"numpy": {}, "out": {"out": out}, "torch": {"like": torch}}[how])
    except (ProtocolError, TensorMismatch) as error:
        refused = error
    if isinstance(refused, TensorMismatch):
        assert loop.messages, "it is not unread any more"
        assert out == bytes(8)
    elif refused is not None:
        assert refused.reason in {"tensor", "dtype", "shape", "compression"}
        assert out == bytes(8) or refused.reason == "tensor"  # flags are compared after the data was read
    else:
        assert meta is not None
        assert not loop.messages
        spec = unpack(meta)
        assert flags == export(np.arange(2, dtype="f4"))[0]
        if how == "out":
            assert (got, bytes(out)) == (out, data)
            return
        assert tuple(got.shape) == spec.shape
        assert spec.nbytes == got.nbytes == len(data)
        if how == "numpy":
            assert sorted(got.tobytes()) == sorted(data)  # the order of axes may be another


def test_what_is_as_it_should_be_is_received() -> None:
    """The other half of the test above, which an end that refuses everything would pass."""
    flags, header, data = export(np.arange(2, dtype="f4"))
    for options in ({}, {"out": np.zeros(2, "f4")}, {"like": torch}):
        loop = Loop()
        loop.messages.append([(flags, 1, None, header, bytes(data))])
        assert loop.recv_tensor(**options).tolist() == [0, 1]


def test_importing_loads_nothing() -> None:
    code = (
        "import sys; import transfer.tensors, transfer.lz4_frame;"
        "print([m for m in ('numpy', 'torch', 'lz4', 'ml_dtypes', 'safetensors') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.strip() == "[]"


def test_numpy_alone_does_not_load_torch() -> None:
    code = (
        "import sys, numpy; from transfer.tensors.export import export;"
        "export(numpy.zeros(3)); export(b'abc'); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert run.stdout.strip() == "False"
