"""Memory of the caller (`out=`) that a tensor is received into.

`check` compares before the payload is read. `buffer_for` returns memory to read the payload into, if there is
any. Where that is the caller's own (`direct`) nothing is left to do; else `fill` copies it once.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, Literal

from transfer.tensors import device
from transfer.tensors.build import NUMPY, TORCH, Recipe
from transfer.tensors.gpu_array import export_array, numpy_dtype
from transfer.transports import cuda, gpu
from transfer.transports.errors import NotATensor, TensorMismatch

_BYTES = "|u1"


class _NumpyTarget:
    """An array, in any order of axes, possibly with gaps."""

    __slots__ = ("out",)
    direct = True
    is_on_gpu: Literal[False] = False

    def __init__(self, out: Any) -> None:
        if not out.flags.writeable:
            raise TensorMismatch("out= is read-only")
        if not out.flags.forc and _may_overlap(out.shape, out.strides, out.itemsize):
            raise TensorMismatch("out= has elements that overlap in memory")
        self.out = out

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if dtype or shape differ."""
        if recipe.make_array is None:
            NUMPY.check(recipe)
        if recipe.numpy_dtype != self.out.dtype or recipe.shape != self.out.shape:
            raise _mismatch(self.out, recipe.numpy_dtype, recipe)

    def buffer_for(self, recipe: Recipe) -> Any:
        """Returns writable flat memory for the payload in its order on the wire, or None."""
        out = self.out
        if recipe.spec.axes is not None:
            out = out.transpose(recipe.spec.axes)
        if not out.flags.c_contiguous or not recipe.nbytes:
            return None
        return out.reshape(-1).view(_BYTES)

    def fill(self, recipe: Recipe, data: Any, offset: int = 0) -> None:
        """Copies a payload that arrived in other memory."""
        buffer = self.buffer_for(recipe)
        if buffer is None:
            self.out[...] = NUMPY.build(recipe, data, offset)
        else:  # byte by byte, since assignment skips the padding of structures
            memoryview(buffer)[:] = _part(recipe, data, offset)


class TorchTarget:
    """A tensor, in any order of axes, on any device."""

    __slots__ = ("_landing", "_plain", "direct", "is_on_gpu", "out")

    def __init__(self, torch: Any, out: Any) -> None:
        if out.layout is not torch.strided or out.is_quantized or out.device.type == "meta":
            raise NotATensor("out= has no plain memory")
        if not out.is_contiguous() and _may_overlap(tuple(out.shape), out.stride(), 1):
            raise TensorMismatch("out= has elements that overlap in memory", hint="was it made by expand()?")
        self.out = out
        self._plain = out.detach() if out.requires_grad else out
        self.direct = not out.is_cuda
        self.is_on_gpu = bool(out.is_cuda)
        self._landing = None if self.direct else device.Landing(device.TorchDevice(out.device))

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if dtype or shape differ."""
        TORCH.check(recipe)
        if recipe.torch_dtype != self.out.dtype or recipe.shape != self.out.shape:
            raise _mismatch(self.out, recipe.torch_dtype, recipe)

    def buffer_for(self, recipe: Recipe) -> Any:
        """Returns writable flat memory for the payload in its order on the wire, or None."""
        plain = self._dense(recipe)
        if plain is None:
            return None
        if self._landing is not None:
            return self._landing.buffer(plain.reshape(-1).view(sys.modules["torch"].uint8))
        if recipe.torch_view is not None:
            plain = plain.view(getattr(sys.modules["torch"], recipe.torch_view))
        return plain.numpy().reshape(-1).view(_BYTES)

    def landed(self, nbytes: int) -> None:
        """So much of the payload is in `buffer_for`'s memory: on a GPU it is copied there."""
        if self._landing is not None:
            self._landing.landed(nbytes)

    def fill(self, recipe: Recipe, data: Any, offset: int = 0) -> None:
        """Copies a payload that arrived in other memory; on a GPU the current stream waits for the copy."""
        plain = self._dense(recipe)
        if self._landing is not None and plain is not None:
            flat = plain.reshape(-1).view(sys.modules["torch"].uint8)
            self._landing.fill(flat, data if self._landing.takes(data) else _part(recipe, data, offset))
        else:
            self._plain.copy_(TORCH.build(recipe, data, offset))

    def _dense(self, recipe: Recipe) -> Any:
        """The tensor in the payload's order of axes; None: it has gaps there, lazy bits, or no bytes."""
        plain = self._plain
        if not (plain.is_cpu or plain.is_cuda) or plain.is_conj() or plain.is_neg() or not recipe.nbytes:
            return None
        if recipe.spec.axes is not None:
            plain = plain.permute(recipe.spec.axes)
        return plain if plain.is_contiguous() else None


class _DenseTarget(ABC):
    """An array on a GPU whose memory is dense in the message's order of axes."""

    __slots__ = ("_landing", "out")
    direct = False
    is_on_gpu: Literal[True] = True

    def __init__(self, out: Any, gpu_device: Any) -> None:
        self.out = out
        self._landing = device.Landing(gpu_device)

    @abstractmethod
    def _flat(self, recipe: Recipe) -> Any:
        """The array's memory in that order, as its library's array of bytes."""

    def buffer_for(self, recipe: Recipe) -> Any:
        """Returns pinned memory, which `fill` copies from, or None."""
        return self._landing.buffer(self._flat(recipe)) if recipe.nbytes else None

    def landed(self, nbytes: int) -> None:
        """So much of the payload is in that memory."""
        self._landing.landed(nbytes)

    def fill(self, recipe: Recipe, data: Any, offset: int = 0) -> None:
        """Copies a payload; the current stream, or the array's, waits for the copy."""
        if recipe.nbytes:
            data = data if self._landing.takes(data) else _part(recipe, data, offset)
            self._landing.fill(self._flat(recipe), data)


class CupyTarget(_DenseTarget):
    """Of CuPy."""

    __slots__ = ()

    def __init__(self, out: Any) -> None:
        super().__init__(out, device.device_of(out))

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if dtype, shape or the order of axes differ."""
        if recipe.make_array is None:
            NUMPY.check(recipe)
        if recipe.numpy_dtype != self.out.dtype or recipe.shape != tuple(self.out.shape):
            raise _mismatch(self.out, recipe.numpy_dtype, recipe)
        if not self._ordered(recipe).flags.c_contiguous:
            raise TensorMismatch("out= is not dense in the order of axes of the tensor that arrived")

    def _flat(self, recipe: Recipe) -> Any:
        return self._ordered(recipe).reshape(-1).view(_BYTES)

    def _ordered(self, recipe: Recipe) -> Any:
        return self.out if recipe.spec.axes is None else self.out.transpose(recipe.spec.axes)


class ArrayTarget(_DenseTarget):
    """Of a library that only has `__cuda_array_interface__`, in C order."""

    __slots__ = ("_bytes", "_dtype")

    def __init__(self, out: Any) -> None:
        self._bytes = export_array(out)[2]
        super().__init__(out, None if self._bytes is None else self._bytes.device)
        if out.__cuda_array_interface__["data"][1]:
            raise TensorMismatch("out= is read-only")
        self._dtype = numpy_dtype(out.__cuda_array_interface__)

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if dtype, shape or the order of axes differ."""
        if recipe.make_array is None:
            NUMPY.check(recipe)
        shape = tuple(self.out.__cuda_array_interface__["shape"])
        if recipe.numpy_dtype != self._dtype or recipe.shape != shape:
            arrived = f"{recipe.numpy_dtype} {list(recipe.shape)}"
            raise TensorMismatch(f"out= is {self._dtype} {list(shape)}, the tensor {arrived}")
        if recipe.spec.axes is not None:
            raise TensorMismatch("the tensor that arrived is in another order of axes than out=")

    def _flat(self, recipe: Recipe) -> Any:
        return self._bytes


class _MemoryTarget:
    """Plain writable memory (bytearray, memoryview ...), for any tensor with the same number of bytes."""

    __slots__ = ("_view", "out")
    direct = True
    is_on_gpu: Literal[False] = False

    def __init__(self, out: Any) -> None:
        try:
            view = memoryview(out)
        except TypeError as error:
            raise NotATensor(
                f"out= is {type(out).__name__}, which has no memory to read into",
                hint="give an array, a torch tensor, or a bytearray",
            ) from error
        if view.readonly or not view.c_contiguous:
            raise TensorMismatch("out= is read-only or not contiguous")
        self.out = out
        self._view = view.cast("B") if view.nbytes else view

    def check(self, recipe: Recipe) -> None:
        """Raises TensorMismatch if the number of bytes differs."""
        if recipe.nbytes != self._view.nbytes:
            raise TensorMismatch(f"out= has {self._view.nbytes} bytes, the tensor {recipe.nbytes}")

    def buffer_for(self, recipe: Recipe) -> Any:
        """Returns the memory itself."""
        return self._view if recipe.nbytes else None

    def fill(self, recipe: Recipe, data: Any, offset: int = 0) -> None:
        """Copies a payload that arrived in other memory."""
        if recipe.nbytes:
            self._view[:] = _part(recipe, data, offset)


Target = _NumpyTarget | TorchTarget | CupyTarget | ArrayTarget | _MemoryTarget


def gpu_of(target: Target) -> tuple[bytes, int] | None:
    """(UUID, number here) of the GPU that holds a target's memory; None: the host does, or it is empty."""
    driver = cuda.load() if target.is_on_gpu else None
    memory = None if driver is None else gpu.described(target.out)
    index = None if driver is None or memory is None else driver.number_of(memory.pointer)
    return None if driver is None or index is None else (driver.uuid(index), index)


def target_for(out: Any) -> Target:
    """Returns the target for `out=`. Raises TensorMismatch (read-only), NotATensor."""
    if device.is_cupy(out):
        return CupyTarget(out)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(out, numpy.ndarray):
        return _NumpyTarget(out)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        return TorchTarget(torch, out)
    if hasattr(out, "__cuda_array_interface__"):
        return ArrayTarget(out)
    return _MemoryTarget(out)


def _part(recipe: Recipe, data: Any, offset: int) -> memoryview:
    return memoryview(data).cast("B")[offset : offset + recipe.nbytes]


def _mismatch(out: Any, arrived: Any, recipe: Recipe) -> TensorMismatch:
    return TensorMismatch(f"out= is {out.dtype} {list(out.shape)}, the tensor {arrived} {list(recipe.shape)}")


def _may_overlap(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two elements may share memory. strides: in units of itemsize. Slices and transposed views never
    do."""
    extent = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True)):
        if size > 1 and stride < extent:
            return True
        extent += stride * (size - 1)
    return False
