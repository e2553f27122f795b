"""Tensors in memory that can be shared with a peer on this host: what `Context.empty` makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transfer.tensors import dtypes
from transfer.tensors.build import Recipe, builder_for
from transfer.tensors.header import EXTENDED_FLAGS, TensorSpec
from transports.errors import UsageError

MAX_DIMENSIONS = 32


def empty(allocate: Callable[[int], Any], shape: int | Sequence[int], dtype: Any, like: Any) -> Any:
    """An uninitialised C-contiguous tensor over `allocate(nbytes)`. Raises UsageError, NotATensor."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(sizes) > MAX_DIMENSIONS or any(type(size) is not int or size < 0 for size in sizes):
        raise UsageError(f"{shape!r} is no shape", hint=f"up to {MAX_DIMENSIONS} numbers from 0 on")
    code, text, itemsize = _described(dtype)
    spec = TensorSpec(code, sizes, itemsize, text=text)
    return builder_for(like).build(Recipe(spec, EXTENDED_FLAGS), allocate(spec.nbytes))


def _described(dtype: Any) -> tuple[int, str, int]:
    name = str(dtype).removeprefix("torch.")
    row = dtypes.BY_NAME.get(name)
    if row is not None:
        return row.code, "", row.itemsize
    import numpy

    try:
        return dtypes.describe_numpy(numpy.dtype(dtype))
    except TypeError as error:
        raise UsageError(f"{dtype!r} is no element type") from error
