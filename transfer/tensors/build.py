"""Makes tensors from a received header and payload, without a copy.

The tensor is writable, and its base keeps the memory (a lease of the pool) alive.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from transfer.tensors import dtypes
from transfer.tensors.device import moved
from transfer.tensors.header import EXTENDED_FLAGS, TENSOR_FLAGS, TensorSpec, is_extended, unpack
from transfer.transports.errors import NotATensor, ProtocolError, TensorMismatch, missing_library
from transfer.transports.forking import undivided
from transfer.transports.gpu import PAYLOADS

_CACHE_LIMIT: Final = 4096
#: validated headers; a look-up here is the fast path of every receive
known_recipes: dict[bytes | None, Recipe] = {}


class Recipe:
    """A validated header, with everything that building a tensor needs; cached by header.

    `flags` are those that the frame must have. The first `check` of a builder fills the numpy or torch
    fields.
    """

    __slots__ = (
        "flags",
        "inverse",
        "make_array",
        "nbytes",
        "numpy_dtype",
        "numpy_view",
        "shape",
        "spec",
        "stored_shape",
        "torch_dtype",
        "torch_view",
    )

    def __init__(self, spec: TensorSpec, flags: int) -> None:
        self.spec = spec
        self.flags = flags
        self.shape = spec.shape
        self.stored_shape = spec.stored_shape
        self.nbytes = spec.nbytes
        self.inverse: tuple[int, ...] | None = None
        if spec.axes is not None:
            self.inverse = tuple(spec.axes.index(axis) for axis in range(len(spec.axes)))
        self.make_array: Any = None
        self.numpy_dtype: Any = None
        row = dtypes.BY_CODE.get(spec.code)
        #: the numpy type under which the buffer protocol can export this one; None: no other type is needed
        self.numpy_view = "|u1" if row is None else row.view or None
        self.torch_dtype: Any = None
        #: the torch dtype to make from numpy before the view as `torch_dtype`, or None
        self.torch_view: Any = None


def recipe_for(meta: bytes) -> Recipe:
    """Reads and validates the header of one tensor. Raises ProtocolError. Thread-safe."""
    recipe = known_recipes.get(meta)
    if recipe is None:
        recipe = Recipe(unpack(meta), EXTENDED_FLAGS if is_extended(meta) else TENSOR_FLAGS)
        if len(known_recipes) >= _CACHE_LIMIT:
            known_recipes.clear()
        known_recipes[meta] = recipe
    return recipe


# --- builders ---------------------------------------------------------------------------------


class _NumpyBuilder:
    """Builds numpy arrays. One instance, `NUMPY`, is enough."""

    def check(self, recipe: Recipe) -> None:
        """Checks the header before the payload is read. Raises ProtocolError("dtype"), NotSupported."""
        if recipe.make_array is None:
            numpy = _import_numpy()
            spec = recipe.spec
            recipe.numpy_dtype = dtypes.numpy_dtype(spec.code, spec.text, spec.itemsize)
            recipe.make_array = numpy.ndarray

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """Makes a writable array over `data[offset:]`, which must be writable memory or bytes."""
        if recipe.make_array is None:
            self.check(recipe)
        if type(data) is bytes:
            data = bytearray(data)
        elif type(data) in PAYLOADS:
            data = data.on_host()  # the sender's memory is free again with the frame
        array = recipe.make_array(recipe.stored_shape, recipe.numpy_dtype, data, offset)
        return array if recipe.inverse is None else array.transpose(recipe.inverse)


class TorchBuilder:
    """Builds torch tensors, and moves them to `device` if that is not the host."""

    def __init__(self, device: Any = None) -> None:
        self.device = device if device is not None and device.type != "cpu" else None
        self._from_numpy: Any = None

    def load(self) -> None:
        """Imports torch, for a caller that named it. Raises NotSupported."""
        _import_numpy()
        try:
            with undivided():
                import torch
        except ImportError as error:
            raise missing_library("a tensor of torch", error, "torch") from error
        self._from_numpy = torch.from_numpy

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch, before the payload is read, if torch has no such dtype."""
        if self._from_numpy is None:
            self.load()
        if recipe.torch_dtype is None:
            dtype = dtypes.torch_dtype(recipe.spec.code)
            if dtype is None:
                name = _type_name(recipe)
                raise TensorMismatch(f"torch has no {name}", hint="receive it as a numpy array")
            if recipe.numpy_view is not None:
                recipe.torch_view = dtypes.TORCH_VIEWS[recipe.spec.itemsize]
            recipe.torch_dtype = dtype

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """Makes a tensor over `data[offset:]`, which must be writable memory or bytes."""
        self.check(recipe)
        if recipe.torch_view is None:
            tensor = self._from_numpy(NUMPY.build(recipe, data, offset))
        else:
            tensor = self._build_viewed(recipe, data, offset)
        return tensor if self.device is None else moved(tensor, self.device)

    def _build_viewed(self, recipe: Recipe, data: Any, offset: int) -> Any:
        """Builds a dtype that numpy lacks, as integers of the same size and a view."""
        from numpy import ndarray

        if type(data) is bytes:
            data = bytearray(data)
        elif type(data) in PAYLOADS:
            data = data.on_host()
        array = ndarray(recipe.stored_shape, recipe.torch_view, data, offset)
        if recipe.inverse is not None:
            array = array.transpose(recipe.inverse)
        return self._from_numpy(array).view(recipe.torch_dtype)


class _ArrayApiBuilder:
    """Builds tensors of any library that follows the array API, through its `from_dlpack`."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace

    def check(self, recipe: Recipe) -> None:
        NUMPY.check(recipe)
        if recipe.spec.text or not dtypes.BY_CODE[recipe.spec.code].numpy:
            raise TensorMismatch(f"DLPack has no {_type_name(recipe)}", hint="receive it as a numpy array")

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        return self.namespace.from_dlpack(NUMPY.build(recipe, data, offset))


Builder = _NumpyBuilder | TorchBuilder | _ArrayApiBuilder
NUMPY: Final = _NumpyBuilder()
#: for tensors in host memory
TORCH: Final = TorchBuilder()


def builder_for(like: Any) -> Builder:
    """Returns the builder for `like=`: a library (`torch`, `"torch"`), a type, or a tensor of that kind.

    None means numpy. Raises NotATensor for anything else.
    """
    if like is None or like == "numpy" or _is_numpy(like):
        return NUMPY
    torch = sys.modules.get("torch")
    if like == "torch":
        TORCH.load()
        return TORCH
    if torch is not None:
        if like is torch or (isinstance(like, type) and issubclass(like, torch.Tensor)):
            return TORCH
        if isinstance(like, torch.Tensor):
            return TORCH if like.device.type == "cpu" else TorchBuilder(like.device)
    if isinstance(like, ModuleType) and hasattr(like, "from_dlpack"):
        return _ArrayApiBuilder(like)
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is not None and not isinstance(like, type):
        return _ArrayApiBuilder(namespace())
    raise NotATensor(f"like={like!r:.80}", hint='give a tensor, numpy, torch, "numpy" or "torch"')


def _is_numpy(like: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(like, type):
        return issubclass(like, (numpy.ndarray, numpy.generic))
    return like is numpy or isinstance(like, (numpy.ndarray, numpy.generic))


def check_length(recipe: Recipe, nbytes: int) -> None:
    """Raises ProtocolError("shape") if the payload's length does not match the header."""
    if nbytes != recipe.nbytes:
        raise ProtocolError("shape", f"{nbytes} bytes for a tensor of {recipe.nbytes} bytes")


def _type_name(recipe: Recipe) -> str:
    row = dtypes.BY_CODE.get(recipe.spec.code)
    return row.name if row is not None else recipe.spec.text[:80]


def _import_numpy() -> ModuleType:
    try:
        with undivided():
            import numpy
    except ImportError as error:
        otherwise = "receive with out=a bytearray"
        raise missing_library("receiving tensors", error, "numpy", otherwise) from error
    return numpy
