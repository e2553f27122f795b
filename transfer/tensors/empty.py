"""Tensors in memory that a peer on this host can share: the result of `Context.empty`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from transfer.tensors import dtypes
from transfer.tensors.build import Recipe, builder_for
from transfer.tensors.header import EXTENDED_FLAGS, TensorSpec
from transfer.transports.arguments import wrong
from transfer.transports.errors import ArgumentError, UsageError

_MAX_DIMENSIONS = 32


def empty(allocate: Callable[[int], Any], shape: int | Sequence[int], dtype: Any, like: Any) -> Any:
    """Makes an uninitialized C-contiguous tensor over `allocate(nbytes)`. Raises UsageError, NotATensor."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape) if isinstance(shape, Iterable) else (-1,)
    if len(sizes) > _MAX_DIMENSIONS or any(
        type(size) is not int or not 0 <= size < 1 << 63 for size in sizes
    ):
        raise UsageError(f"{shape!r} is no shape", hint=f"up to {_MAX_DIMENSIONS} numbers from 0 on")
    code, text, itemsize = _described(dtype)
    spec = TensorSpec(code, sizes, itemsize, text=text)
    return builder_for(like).build(Recipe(spec, EXTENDED_FLAGS), allocate(spec.nbytes))


def _described(dtype: Any) -> tuple[int, str, int]:
    if dtype is None:  # numpy would take it for float64
        raise _no_dtype(dtype)
    name = str(dtype).removeprefix("torch.")
    row = dtypes.BY_NAME.get(name)
    if row is not None:
        return row.code, "", row.itemsize
    import numpy

    try:
        return dtypes.describe_numpy(numpy.dtype(dtype))
    except TypeError as error:
        raise _no_dtype(dtype) from error


def _no_dtype(given: Any) -> ArgumentError:
    return wrong("dtype", given, 'a name, for instance "float32", or a type of numpy or torch')
