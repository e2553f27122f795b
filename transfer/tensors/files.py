"""Tensors in files: `.safetensors` by its documented format, `.npy` by numpy.

A safetensors file is u64 length of the header, the header (JSON: name -> dtype, shape, offsets;
`__metadata__` -> strings), then the data without gaps. Nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final

from transfer.tensors import dtypes
from transfer.tensors.build import NUMPY, Builder, Recipe, builder_for, recipe_for
from transfer.tensors.export import export
from transfer.tensors.header import EXTENDED_FLAGS, MAX_BYTES, TensorSpec
from transfer.transports.errors import NotATensor, ProtocolError, UsageError

_LENGTH: Final = struct.Struct("<Q")
#: the limit of the safetensors library
_MAX_HEADER: Final = 100_000_000
_METADATA: Final = "__metadata__"


def load(path: str | os.PathLike[str], *, like: Any = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Loads the tensors of a .safetensors or .npy file.

    The file is mapped into memory: its pages are read on first use. Writing to a tensor changes only this
    process's copy.

    Args:
        path: the file; its suffix selects the format.
        like: the kind of tensor, as in `recv_tensor`; numpy by default.

    Returns:
        (tensors by name, metadata). The tensor of a .npy file has the name "".

    Raises:
        UsageError: the suffix is neither .safetensors nor .npy.
        NotATensor: the file is damaged, or holds Python objects.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    if name.endswith(".npy"):
        return {"": _load_npy(name, like)}, {}
    if not name.endswith(".safetensors"):
        raise UsageError(f"{name} is neither .safetensors nor .npy")
    try:
        return _load_safetensors(name, builder_for(like))
    except ProtocolError as error:  # what the header says does not hold, as in a peer's message
        hint = "the file is damaged, or its end is missing: copy or save it again"
        raise NotATensor(f"{name}: {error}", hint=hint) from error


def _load_safetensors(name: str, builder: Builder) -> tuple[dict[str, Any], dict[str, str]]:
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise ProtocolError("truncated", f"the file has {size} bytes")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        rows, metadata, start = _read_header(mapped)
        tensors: dict[str, Any] = {}
        for key, (spec, offset) in rows.items():
            recipe = Recipe(spec, EXTENDED_FLAGS)
            builder.check(recipe)
            tensors[key] = builder.build(recipe, mapped, start + offset)
    except BaseException:
        tensors = {}
        mapped.close()
        raise
    if not any(spec.nbytes for spec, _ in rows.values()):
        mapped.close()
    return tensors, metadata


_Rows = dict[str, tuple[TensorSpec, int]]


def _read_header(mapped: mmap.mmap) -> tuple[_Rows, dict[str, str], int]:
    (length,) = _LENGTH.unpack_from(mapped)
    start = _LENGTH.size + length
    if length > _MAX_HEADER or start > len(mapped):
        raise ProtocolError("truncated", f"it has a header of {length} bytes in {len(mapped)}")
    try:
        described = json.loads(mapped[_LENGTH.size : start].decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("tensor", "the header is not JSON") from error
    if not isinstance(described, dict):
        raise ProtocolError("tensor", "the header is not an object")
    metadata = described.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict):
        raise ProtocolError("tensor", "the metadata is not an object")
    rows = {key: _read_row(key, row, len(mapped) - start) for key, row in described.items()}
    return rows, metadata, start


def _read_row(key: str, row: Any, available: int) -> tuple[TensorSpec, int]:
    try:
        kind, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("tensor", f"{key!r} is described incompletely") from error
    known = dtypes.BY_SAFETENSORS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise ProtocolError("dtype", f"{key!r} has the unknown dtype {kind!r}")
    if not all(type(number) is int and 0 <= number <= MAX_BYTES for number in (*shape, begin, end)):
        raise ProtocolError("shape", f"{key!r} has a shape or offsets that are no sizes")
    spec = TensorSpec(known.code, shape, known.itemsize)
    if end > available or end - begin != spec.nbytes or len(shape) > 32:
        raise ProtocolError("shape", f"{key!r} has bytes {begin} to {end} for shape {list(shape)}")
    return spec, begin


def _load_npy(name: str, like: Any) -> Any:
    import numpy
    from numpy.lib.format import open_memmap

    try:
        array = open_memmap(name, mode="c").view(numpy.ndarray)
    except OSError:
        raise
    except Exception as error:  # numpy reads the header as Python text: its errors are of many types
        hint = "save an array of numbers: arrays of objects and broken files hold no tensor"
        raise NotATensor(f"{name}: {error}", hint=hint) from error
    builder = builder_for(like)
    if builder is NUMPY:
        return array
    _, header, buffer = export(array)
    return builder.build(recipe_for(header), buffer)


def save(path: str | os.PathLike[str], tensors: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a dict of tensors as .safetensors, or one tensor as .npy.

    The file gets its name only when it is complete.

    Args:
        path: the file; its suffix selects the format.
        tensors: a dict of tensors by name for .safetensors, a tensor for .npy.
        metadata: a dict of strings, for .safetensors only.

    Raises:
        NotATensor: the format has no such dtype (complex128, structured ...).
        UsageError: the suffix is unknown, or names or metadata are not strings.
        OSError: the file cannot be written.
    """
    name = os.fspath(path)
    if name.endswith(".npy"):
        write = _npy_writer(tensors)
    elif name.endswith(".safetensors"):
        write = _safetensors_writer(tensors, metadata or {})
    else:
        raise UsageError(f"{name} is neither .safetensors nor .npy")
    partial = f"{name}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            write(file)
        os.replace(partial, name)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


_Writer = Callable[[BinaryIO], None]


def _npy_writer(tensor: Any) -> _Writer:
    import numpy

    _, header, buffer = export(tensor)
    recipe = recipe_for(header)
    row = dtypes.BY_CODE.get(recipe.spec.code)
    if row is not None and not row.numpy:
        raise NotATensor(f".npy has no {row.name}", hint="save it as .safetensors")
    array = NUMPY.build(recipe, buffer)
    return lambda file: numpy.save(file, array, allow_pickle=False)


def _safetensors_writer(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> _Writer:
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise UsageError("the metadata of a .safetensors file is str to str")
    if not all(isinstance(name, str) and name != _METADATA for name in tensors):
        raise UsageError(f"names of tensors are str, and not {_METADATA}")
    plain = {name: _in_c_order(name, tensor) for name, tensor in tensors.items()}
    # the widest elements first, so that every tensor is aligned
    order = sorted(plain, key=lambda name: (-plain[name][0].spec.itemsize, name))
    described: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        spec = plain[name][0].spec
        kind = dtypes.BY_CODE[spec.code].safetensors
        offsets = [at, at + spec.nbytes]
        described[name] = {"dtype": kind, "shape": list(spec.shape), "data_offsets": offsets}
        at = offsets[1]
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)

    def write(file: BinaryIO) -> None:
        file.write(_LENGTH.pack(len(header)) + header)
        for name in order:
            file.write(plain[name][1])

    return write


def _in_c_order(name: str, tensor: Any) -> tuple[Recipe, Any]:
    _, header, buffer = export(tensor)
    recipe = recipe_for(header)
    row = dtypes.BY_CODE.get(recipe.spec.code)
    if row is None or not row.safetensors:
        what = row.name if row is not None else recipe.spec.text
        raise NotATensor(f"{name!r}: safetensors has no {what}")
    if recipe.spec.axes is not None:
        import numpy

        array = NUMPY.build(recipe, buffer)
        return _in_c_order(name, numpy.ascontiguousarray(array))
    return recipe, buffer
