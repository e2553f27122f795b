"""Tensors in files, checked against the safetensors library and numpy."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, strategies as st

from transfer.tensors import load, save
from transfer.transports.errors import NotATensor, TransferError, UsageError

torch = pytest.importorskip("torch", reason="pip install torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

TENSORS = {
    "f": np.arange(12, dtype="f4").reshape(3, 4),
    "i8": np.arange(5, dtype="i1"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.array(7),
    "empty": np.zeros((0, 2), "u2"),
    "bool": np.array([True, False]),
    "complex": np.array([1j], "c8"),
}


def equal(got: dict[str, Any], sent: dict[str, Any]) -> None:
    assert got.keys() == sent.keys()
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert np.array_equal(got[name], tensor)


def test_what_we_write_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(path, TENSORS, {"format": "ours"})
    equal(safetensors.numpy.load_file(path), TENSORS)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "ours"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_the_library_writes_we_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    plain = {name: np.ascontiguousarray(tensor) for name, tensor in TENSORS.items() if name != "scalar"}
    safetensors.numpy.save_file(plain, path, {"a": "b"})
    got, metadata = load(path)
    equal(got, plain)
    assert metadata == {"a": "b"}


def test_torch_and_its_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    sent = {
        "bf16": torch.arange(6).view(2, 3).bfloat16(),
        "f8": torch.arange(6.0).to(torch.float8_e4m3fn),
        "f8e5": torch.arange(6.0).to(torch.float8_e5m2),
        "grad": torch.ones(3, requires_grad=True),
        "turned": torch.arange(6).view(2, 3).T,
    }
    save(path, sent)
    got, _ = load(path, like=torch)
    reference = safetensors_torch.load_file(path)
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].float().equal(tensor.float())
        assert reference[name].float().equal(tensor.float())
    assert load(path)[0]["bf16"].dtype == ml_dtypes.bfloat16


def test_loaded_tensors_are_writable_and_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(path, TENSORS)
    before = path.read_bytes()
    tensor = load(path)[0]["f"]
    tensor += 1
    assert tensor[0, 0] == 1
    assert path.read_bytes() == before
    tensors = load(path, like=torch)[0]
    tensors["f"].mul_(2)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", TENSORS)
def test_npy(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.npy"
    save(path, TENSORS[name])
    equal({"": np.load(path)}, {"": TENSORS[name]})
    got, metadata = load(path)
    equal(got, {"": TENSORS[name]})
    assert metadata == {}
    assert got[""].flags.f_contiguous == TENSORS[name].flags.f_contiguous
    assert np.array_equal(load(path, like="torch")[0][""].numpy(), TENSORS[name])


def test_what_a_format_does_not_have(tmp_path: Path) -> None:
    for name, tensor in {
        "x.safetensors": {"a": np.zeros(3, "c16")},
        "y.safetensors": {"a": np.zeros(3, [("f", "f4")])},
        "x.npy": np.zeros(3, ml_dtypes.bfloat16),
        "y.npy": "text",
    }.items():
        with pytest.raises(NotATensor):
            save(tmp_path / name, tensor)
    for tensors, metadata in (({3: np.zeros(1)}, {}), ({"__metadata__": np.zeros(1)}, {}), ({}, {"a": 1})):
        with pytest.raises(UsageError):
            save(tmp_path / "z.safetensors", tensors, metadata)
    for call in (lambda: save(tmp_path / "x.bin", {}), lambda: load(tmp_path / "x.bin")):
        with pytest.raises(UsageError, match="neither"):
            call()
    assert not list(tmp_path.iterdir())


def test_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(NotATensor):
        load(path)


# numpy warns about headers of its past
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::SyntaxWarning")
@given(
    st.dictionaries(st.integers(0, 207), st.sampled_from(b"'({[)}],:0x-LTF9\n\"\\\0\xff"), max_size=4),
    st.integers(0, 208),
)
def test_a_broken_npy_is_a_tensor_or_a_typed_error(changed: dict[int, int], length: int) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(10))
    data = bytearray(file.getvalue())
    for at, byte in changed.items():
        data[at] = byte
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        path.write_bytes(data[:length])
        loaded, refused = None, ""
        try:
            loaded = load(path)[0][""]
        except NotATensor as error:
            refused = str(error)
    assert (loaded is None) == refused.startswith(str(path))
    assert loaded is None or not loaded.dtype.hasobject


def written(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def row(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BROKEN = {
    "empty": b"",
    "short": b"1234567",
    "header too long": struct.pack("<Q", 1 << 62) + b"{}",
    "header cut off": struct.pack("<Q", 10) + b"{}",
    "no JSON": written(b"{x"),
    "a list": written([]),
    "metadata is text": written({"__metadata__": "x"}),
    "row is text": written({"a": "x"}),
    "no offsets": written({"a": {"dtype": "F32", "shape": [1]}}),
    "unknown dtype": written(row(dtype="X9"), bytes(4)),
    "dtype is a list": written(row(dtype=["F32"]), bytes(4)),
    "negative shape": written(row(shape=[-1]), bytes(4)),
    "shape of text": written(row(shape=["1"]), bytes(4)),
    "shape is absurd": written(row(shape=[1 << 62, 1 << 62]), bytes(4)),
    "offsets past the end": written(row(offsets=[0, 4]), bytes(3)),
    "offsets backwards": written(row(offsets=[4, 0]), bytes(4)),
    "shape and length differ": written(row(shape=[2]), bytes(4)),
    "33 dimensions": written(row(shape=[1] * 33), bytes(4)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(BROKEN[name])
    with pytest.raises(NotATensor, match=r"x\.safetensors: .*(?s:.*)hint: the file is damaged"):
        load(path)


def test_errors_of_the_system_come_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.safetensors")
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "missing" / "x.safetensors", {})
    assert not issubclass(FileNotFoundError, TransferError)
