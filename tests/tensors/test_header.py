"""Tensor headers: exact bytes, round trips, and everything that must be refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, strategies as st

from tests.tensors.pairs import refusal
from transfer.tensors import dtypes
from transfer.tensors.build import recipe_for
from transfer.tensors.header import (
    EXTENDED_FLAGS,
    MAX_BYTES,
    TENSOR_FLAGS,
    TensorSpec,
    fortran_axes,
    measure,
    pack,
    unpack,
)
from transfer.transports.core.wire import EXTENDED_MAX
from transfer.transports.errors import NotATensor, ProtocolError

SEED = [row for row in dtypes.TABLE if row.code <= dtypes.LAST_SEED_CODE]


def test_the_seed_header_byte_by_byte() -> None:
    flags, header = pack(TensorSpec(2, (3, 4), 4))
    assert flags == TENSOR_FLAGS == 1
    assert header == struct.pack("<II4qB7x", 2, 2, 3, 4, 0, 0, 0)
    assert len(header) == 48
    assert pack(TensorSpec(2, (3, 4), 4, (1, 0)))[1][40] == 1


@pytest.mark.parametrize("row", SEED, ids=lambda row: row.name)
def test_the_nine_dtypes_of_the_seed_have_its_numbers(row: dtypes.ElementType) -> None:
    names = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
    assert names[row.code - 1] == row.name
    flags, header = pack(TensorSpec(row.code, (1, 2, 3, 4), row.itemsize))
    assert (flags, len(header)) == (TENSOR_FLAGS, 48)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(2, (), 4),
        TensorSpec(2, (0,), 4),
        TensorSpec(2, (1,) * 5, 4),
        TensorSpec(2, (2, 3), 4, device=(2, 1)),
        TensorSpec(2, (2, 3, 4), 4, (1, 0, 2)),
        TensorSpec(21, (2, 3), 2),
        TensorSpec(0, (2,), 8, text='[["a","<f8"]]'),
    ],
    ids=["scalar", "empty", "five dimensions", "on a device", "order of axes", "bfloat16", "structured"],
)
def test_what_the_seed_cannot_say_is_extended(spec: TensorSpec) -> None:
    flags, header = pack(spec)
    assert flags == EXTENDED_FLAGS == 65
    assert struct.unpack_from("<I", header)[0] == len(header) >= 16
    assert unpack(header) == spec


def shapes_within(limit: int) -> st.SearchStrategy[list[int]]:
    size = st.one_of(st.integers(0, 9), st.integers(0, 1 << 40))
    return st.lists(size, max_size=32).filter(lambda s: math.prod(n or 1 for n in s) * 16 <= limit)


@given(st.data())
def test_every_valid_header_survives(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(dtypes.TABLE))
    shape = tuple(data.draw(shapes_within(MAX_BYTES)))
    axes = data.draw(st.none() | st.permutations(range(len(shape))).map(tuple))
    if axes == tuple(range(len(shape))):
        axes = None
    device = data.draw(st.just((1, 0)) | st.tuples(st.integers(0, 255), st.integers(0, 65535)))
    spec = TensorSpec(row.code, shape, row.itemsize, axes, "", device)
    flags, header = pack(spec)
    assert (flags == EXTENDED_FLAGS) == (len(header) != 48 or struct.unpack_from("<I", header)[0] >= 16)
    read = unpack(header)
    assert (read.code, read.shape, read.itemsize, read.axes) == (row.code, shape, row.itemsize, axes)
    assert read.device == device or (flags == TENSOR_FLAGS and device[0] == 1)
    assert read.nbytes == math.prod(shape) * row.itemsize
    assert measure(b"xx" + header + b"yy", 2) == len(header)


def seed(dtype: int = 2, ndim: int = 1, shape: tuple[int, ...] = (1, 0, 0, 0), layout: int = 0) -> bytes:
    return struct.pack("<II4qB7x", dtype, ndim, *shape, layout)


def extended(
    *shape: int, kind: int = 1, dtype: int = 2, ndim: int | None = None, layout: int = 0, reserved: int = 0,
    itemsize: int = 4, rest: bytes = b"", length: int | None = None,
) -> bytes:  # fmt: skip
    body = struct.pack(f"<{len(shape)}q", *shape) + rest
    count = len(shape) if ndim is None else ndim
    total = 16 + len(body) if length is None else length
    return struct.pack("<IBBBBBBHI", total, kind, dtype, count, layout, 1, reserved, 0, itemsize) + body


BAD = {
    "empty": (b"", "tensor"),
    "three bytes": (b"abc", "tensor"),
    "47 bytes": (seed()[:47], "tensor"),
    "49 bytes": (seed() + b"x", "tensor"),
    "dtype 0": (seed(dtype=0), "dtype"),
    "dtype 10": (seed(dtype=10), "dtype"),
    "dtype 99": (seed(dtype=99), "dtype"),
    "5 dimensions": (seed(ndim=5), "shape"),
    "2^32-1 dimensions": (seed(ndim=0xFFFFFFFF), "shape"),
    "negative": (seed(shape=(-1, 0, 0, 0)), "shape"),
    "smallest number": (seed(shape=(-(1 << 63), 0, 0, 0)), "shape"),
    "product over 2^63": (seed(ndim=4, shape=(1 << 40, 1 << 20, 1 << 10, 1 << 10)), "shape"),
    "product wraps to 0": (seed(ndim=4, shape=(1 << 62, 1 << 62, 1 << 62, 1 << 62)), "shape"),
    "layout 2": (seed(layout=2), "tensor"),
    "own length too short": (extended(3, length=23), "tensor"),
    "own length too long": (extended(3, length=25), "tensor"),
    "kind 0": (extended(3, kind=0), "tensor"),
    "kind 3": (extended(3, kind=3), "tensor"),
    "a bundle": (extended(3, kind=2), "tensor"),
    "33 dimensions": (extended(*[1] * 33), "shape"),
    "shape cut off": (extended(3, ndim=2), "tensor"),
    "layout 3": (extended(3, layout=3), "tensor"),
    "reserved byte": (extended(3, reserved=1), "tensor"),
    "unknown dtype": (extended(3, dtype=99), "dtype"),
    "wrong item size": (extended(3, itemsize=8), "dtype"),
    "bytes too many": (extended(3, rest=b"x"), "tensor"),
    "axes missing": (extended(3, 4, layout=2), "tensor"),
    "axes doubled": (extended(3, 4, layout=2, rest=b"\0\0"), "tensor"),
    "axis out of range": (extended(3, 4, layout=2, rest=b"\0\2"), "tensor"),
    "negative, extended": (extended(-3), "shape"),
    "empty, but overflowing": (extended(0, 1 << 62), "shape"),
    "no description": (extended(3, dtype=0), "dtype"),
    "description without size": (extended(3, dtype=0, itemsize=0, rest=b'"<f4"'), "dtype"),
    "description is no UTF-8": (extended(3, dtype=0, rest=b"\xff\xfe"), "dtype"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_with_its_reason(name: str) -> None:
    header, reason = BAD[name]
    with pytest.raises(ProtocolError) as caught:
        unpack(header)
    assert caught.value.reason == reason


@given(st.binary(max_size=200) | st.tuples(st.sampled_from(list(BAD)), st.binary(max_size=8)).map(
    lambda pair: BAD[pair[0]][0] + pair[1]
))  # fmt: skip
def test_garbage_is_read_or_refused_and_nothing_else(header: bytes) -> None:
    error = refusal(unpack, header)
    if error is None:
        assert 0 <= unpack(header).nbytes <= MAX_BYTES
    else:
        assert error.reason in {"tensor", "dtype", "shape"}


@given(st.data())
def test_a_flipped_byte_never_escapes_the_checks(data: st.DataObject) -> None:
    header = bytearray(pack(TensorSpec(2, (2, 3, 4), 4, (1, 0, 2)))[1])
    header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        spec = unpack(bytes(header))
    except ProtocolError:
        return
    assert spec.axes is None or sorted(spec.axes) == list(range(len(spec.shape)))


DESCRIPTIONS = [
    '"|O"', '"<f4,<f4"', '"(3,)f4"', "[]", "[[]]", "{}", "null", "3", '[["a"]]', '[["a","|O"]]',
    '[["a","<f4"],["a","<f4"]]', '[["a","<f4",[-1]]]', '[["a","<f4",[0]]]', '"<f3"', '"|V0"', '"x"',
    "[" * 60 + "]" * 60, '["<f4",[99999999999]]', '["<f4",[2]]', '[["a","<f4",3]]',
    # numpy divides by this zero in C, which ends the process
    '"<M8[s/0]"', '[["a","<m8[s/0]"]]', '"<M8[0s]"', '"|V2147483647,<f4"', '"<f4\\n"',
    '[["a","<f4",[1],4]]', "[[1,2]]", '"<U999999999999"', '[[["t","a","x"],"<f4"]]', '[["",{}]]', '["<f4"]',
]  # fmt: skip


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_a_description_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        dtypes.numpy_dtype(dtypes.TEXT, text, 4)
    assert caught.value.reason == "dtype"


def test_a_description_must_have_the_size_that_the_header_says() -> None:
    assert dtypes.numpy_dtype(dtypes.TEXT, '">f4"', 4).str == ">f4"
    with pytest.raises(ProtocolError, match="not 8"):
        dtypes.numpy_dtype(dtypes.TEXT, '">f4"', 8)


@given(st.text(max_size=60) | st.from_regex(r'\[\["[a-c]","[<>|][a-z][0-9]{0,3}"(,\[[0-9]{1,3}\])?\]\]'))
def test_any_description_is_a_dtype_or_refused(text: str) -> None:
    error = refusal(dtypes._numpy_from_text, text)
    if error is None:
        assert not dtypes._numpy_from_text(text).hasobject
    else:
        assert error.reason == "dtype"


def test_what_no_header_can_say_is_refused_before_it_is_sent() -> None:
    with pytest.raises(NotATensor, match="33 dimensions"):
        pack(TensorSpec(2, (1,) * 33, 4))
    with pytest.raises(NotATensor, match="bytes"):
        pack(TensorSpec(0, (1,), 4, text="x" * EXTENDED_MAX))


def test_headers_are_kept_but_not_without_end() -> None:
    from transfer.tensors import build

    recipe = recipe_for(seed())
    assert recipe_for(bytes(bytearray(seed()))) is recipe
    for size in range(build._CACHE_LIMIT + 10):
        recipe_for(seed(shape=(size + 1, 0, 0, 0)))
    assert len(build.known_recipes) <= build._CACHE_LIMIT


def test_fortran_axes() -> None:
    assert fortran_axes(3) == (2, 1, 0)
    assert fortran_axes(0) == ()
