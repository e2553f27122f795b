"""The way in: a header and the bytes that arrived become a tensor, without a copy.

The tensor is writable and its base keeps the memory (a lease of the pool) alive.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from transfer.tensors import dtypes
from transfer.tensors.header import EXTENDED_FLAGS, TENSOR_FLAGS, TensorSpec, is_extended, unpack
from transports.errors import NotATensor, NotSupported, ProtocolError, TensorMismatch

_CACHE_LIMIT: Final = 4096
#: headers that were read and found good; a look-up here is the fast path of every receive
known_recipes: dict[bytes | None, Recipe] = {}


class Recipe:
    """A header that was read and checked, with what building needs; kept by header.

    `flags` are those that the frame must have. `numpy_dtype` and `torch_dtype` are None until the
    first tensor of that kind is built.
    """

    __slots__ = ("flags", "inverse", "nbytes", "numpy_dtype", "shape", "spec", "stored_shape", "torch_dtype")

    def __init__(self, spec: TensorSpec, flags: int) -> None:
        self.spec = spec
        self.flags = flags
        self.shape = spec.shape
        self.stored_shape = spec.stored_shape
        self.nbytes = spec.nbytes
        self.inverse: tuple[int, ...] | None = None
        if spec.axes is not None:
            self.inverse = tuple(spec.axes.index(axis) for axis in range(len(spec.axes)))
        self.numpy_dtype: Any = None
        self.torch_dtype: Any = None


def recipe_for(meta: bytes) -> Recipe:
    """Reads the header of one tensor. Raises ProtocolError. Thread-safe."""
    recipe = known_recipes.get(meta)
    if recipe is None:
        recipe = Recipe(unpack(meta), EXTENDED_FLAGS if is_extended(meta) else TENSOR_FLAGS)
        if len(known_recipes) >= _CACHE_LIMIT:
            known_recipes.clear()
        known_recipes[meta] = recipe
    return recipe


# --- builders ---------------------------------------------------------------------------------


class NumpyBuilder:
    """Builds numpy arrays. One instance, `NUMPY`, is enough."""

    def check(self, recipe: Recipe) -> None:
        """Raises before anything is read: ProtocolError("dtype"), NotSupported."""
        if recipe.numpy_dtype is None:
            try:
                import numpy  # noqa: F401
            except ImportError as error:
                raise NotSupported(
                    "tensors arrive as numpy arrays, and numpy is missing",
                    hint="pip install numpy, or receive with like=torch or out=a bytearray",
                ) from error
            spec = recipe.spec
            recipe.numpy_dtype = dtypes.numpy_dtype(spec.code, spec.text, spec.itemsize)

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """A writable array over `data[offset:]`, which must be writable memory or bytes."""
        from numpy import ndarray

        if recipe.numpy_dtype is None:
            self.check(recipe)
        if type(data) is bytes:
            data = bytearray(data)
        array = ndarray(recipe.stored_shape, recipe.numpy_dtype, data, offset)
        return array if recipe.inverse is None else array.transpose(recipe.inverse)


class TorchBuilder:
    """Builds torch tensors, and moves them to `device` if it is not the host."""

    def __init__(self, device: Any = None) -> None:
        self.device = device if device is not None and device.type != "cpu" else None

    def load(self) -> None:
        """Imports torch, for a caller who asked for it by name. Raises NotSupported."""
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise NotSupported("like='torch', and torch is missing", hint="pip install torch") from error

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch before anything is read, if torch has no such dtype."""
        if recipe.torch_dtype is None:
            recipe.torch_dtype = dtypes.torch_dtype(recipe.spec.code)
            if recipe.torch_dtype is None:
                name = _type_name(recipe)
                raise TensorMismatch(f"torch has no {name}", hint="receive it as a numpy array")

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """A tensor over `data[offset:]`, which must be writable memory or bytes."""
        import torch

        self.check(recipe)
        if recipe.nbytes == 0:
            return torch.empty(recipe.shape, dtype=recipe.torch_dtype, device=self.device)
        if type(data) is bytes:
            data = bytearray(data)
        flat = torch.frombuffer(
            data, dtype=recipe.torch_dtype, count=recipe.nbytes // recipe.spec.itemsize, offset=offset
        )
        tensor = flat.view(recipe.stored_shape)
        if recipe.inverse is not None:
            tensor = tensor.permute(recipe.inverse)
        return tensor if self.device is None else tensor.to(self.device)


class ArrayApiBuilder:
    """Builds tensors of any library that follows the array API, by its `from_dlpack`."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace

    def check(self, recipe: Recipe) -> None:
        NUMPY.check(recipe)
        if recipe.spec.text or not dtypes.BY_CODE[recipe.spec.code].numpy:
            raise TensorMismatch(f"DLPack has no {_type_name(recipe)}", hint="receive it as a numpy array")

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        return self.namespace.from_dlpack(NUMPY.build(recipe, data, offset))


Builder = NumpyBuilder | TorchBuilder | ArrayApiBuilder
NUMPY: Final = NumpyBuilder()
_TORCH: Final = TorchBuilder()


def builder_for(like: Any) -> Builder:
    """What `like=` means: a library (`torch`, `"torch"`), a type, or a tensor of the kind wanted.

    None means numpy. Raises NotATensor for anything else.
    """
    if like is None or like == "numpy" or _is_numpy(like):
        return NUMPY
    torch = sys.modules.get("torch")
    if isinstance(like, str) and like == "torch":
        _TORCH.load()
        return _TORCH
    if torch is not None:
        if like is torch or (isinstance(like, type) and issubclass(like, torch.Tensor)):
            return _TORCH
        if isinstance(like, torch.Tensor):
            return _TORCH if like.device.type == "cpu" else TorchBuilder(like.device)
    if isinstance(like, ModuleType) and hasattr(like, "from_dlpack"):
        return ArrayApiBuilder(like)
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is not None and not isinstance(like, type):
        return ArrayApiBuilder(namespace())
    raise NotATensor(f"like={like!r:.80}", hint='give a tensor, numpy, torch, "numpy" or "torch"')


def _is_numpy(like: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(like, type):
        return issubclass(like, (numpy.ndarray, numpy.generic))
    return like is numpy or isinstance(like, (numpy.ndarray, numpy.generic))


# --- into memory of the caller ----------------------------------------------------------------


class Target:
    """Memory of the caller (`out=`) that a tensor is received into.

    `check` compares before anything is read; `buffer_for` gives the memory if the bytes can be
    read straight into it; else `fill` copies them once.
    """

    __slots__ = ("_by_axes", "_dtype", "_kind", "_shape", "_whole", "out")

    def __init__(self, out: Any) -> None:
        self.out = out
        self._whole: Any = out
        self._by_axes: dict[tuple[int, ...] | None, Any] = {}
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(out, numpy.ndarray):
            self._kind = "numpy"
            self._use_numpy(out)
        elif torch is not None and isinstance(out, torch.Tensor):
            self._kind = "torch"
            self._use_torch(torch, out)
        else:
            self._kind = "bytes"
            self._use_bytes(out)

    def _use_numpy(self, out: Any) -> None:
        if not out.flags.writeable:
            raise TensorMismatch("out= is read-only")
        self._dtype, self._shape = out.dtype, out.shape
        code, _, _ = dtypes.describe_numpy(out.dtype)
        row = dtypes.BY_CODE.get(code)
        if out.flags.c_contiguous:
            buffer = out
        elif out.flags.f_contiguous:
            buffer = out.T
        else:
            return
        if row is None or row.view:
            buffer = buffer.reshape(-1).view("|u1")
        self._by_axes[self._axes(bool(out.flags.c_contiguous))] = buffer

    def _use_torch(self, torch: Any, out: Any) -> None:
        if out.layout is not torch.strided or out.is_quantized or out.device.type == "meta":
            raise NotATensor("out= has no plain memory")
        plain = self._whole = out.detach()
        self._dtype, self._shape = out.dtype, tuple(out.shape)
        dtypes.describe_torch(out.dtype)
        if out.device.type != "cpu" or plain.is_conj() or plain.is_neg():
            return
        c_order = plain.is_contiguous()
        if not c_order:
            plain = plain.permute(tuple(range(plain.ndim - 1, -1, -1)))
            if not plain.is_contiguous():
                return
        if plain.numel():
            self._by_axes[self._axes(c_order)] = plain.view(-1).view(torch.uint8).numpy()

    def _use_bytes(self, out: Any) -> None:
        try:
            view = memoryview(out)
        except TypeError as error:
            raise NotATensor(f"out= is {type(out).__name__}, which has no memory to read into") from error
        if view.readonly or not view.c_contiguous:
            raise TensorMismatch("out= is read-only or not contiguous")
        self._dtype, self._shape = None, (view.nbytes,)
        self._by_axes[None] = out

    def _axes(self, c_order: bool) -> tuple[int, ...] | None:
        return None if c_order else tuple(range(len(self._shape) - 1, -1, -1))

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if dtype or shape differ (plain memory: the number of bytes)."""
        if self._kind == "bytes":
            if recipe.nbytes != self._shape[0]:
                raise TensorMismatch(f"out= has {self._shape[0]} bytes, the tensor {recipe.nbytes}")
            return
        if self._kind == "numpy":
            NUMPY.check(recipe)
            arrived = recipe.numpy_dtype
        else:
            _TORCH.check(recipe)
            arrived = recipe.torch_dtype
        if arrived != self._dtype or recipe.shape != self._shape:
            raise TensorMismatch(
                f"out= is {self._dtype} {list(self._shape)}, the tensor {arrived} {list(recipe.shape)}"
            )

    def buffer_for(self, recipe: Recipe) -> Any:
        """Writable memory for the bytes as they lie on the wire, or None."""
        if not recipe.nbytes:
            return None
        if self._kind == "bytes":
            return self._by_axes[None]
        return self._by_axes.get(recipe.spec.axes)

    def fill(self, recipe: Recipe, data: Any, offset: int = 0) -> None:
        """Copies bytes that arrived elsewhere."""
        if self._kind == "numpy":
            self.out[...] = NUMPY.build(recipe, data, offset)
        elif self._kind == "torch":
            self._whole.copy_(_TORCH.build(recipe, data, offset))
        else:
            source = memoryview(data).cast("B")[offset : offset + recipe.nbytes]
            memoryview(self.out).cast("B")[:] = source


def check_length(recipe: Recipe, nbytes: int) -> None:
    """Raises ProtocolError("shape") when header and data disagree."""
    if nbytes != recipe.nbytes:
        raise ProtocolError("shape", f"{nbytes} bytes for a tensor of {recipe.nbytes} bytes")


def _type_name(recipe: Recipe) -> str:
    row = dtypes.BY_CODE.get(recipe.spec.code)
    return row.name if row is not None else recipe.spec.text[:80]
