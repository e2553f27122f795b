"""Arrays in memory of a GPU that no library has made: what `recv_tensor(device=...)` returns, and what others
describe by `__cuda_array_interface__`.

torch, CuPy and numba read them in place: `torch.as_tensor(array)`, `cupy.asarray(array)`. Never run on a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transfer.tensors import dtypes
from transfer.tensors.build import Recipe
from transfer.tensors.driver_device import DriverDevice
from transfer.tensors.header import TensorSpec, pack
from transfer.transports import cuda, gpu
from transfer.transports.errors import NotATensor, missing_library

#: the legacy default stream, in which libraries that name none work
DEFAULT_STREAM = 1
#: DLPack's numbers of kinds of elements, by numpy's letters; and the names of their dtypes here
_DLPACK_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DLPACK_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_DLPACK_BOOL = 6


class GpuArray:
    """An array on a GPU, dense in the order of its axes, which owns its memory.

    Attributes: shape, nbytes, device (as "cuda:0"). Work of the default stream sees it complete. To read it,
    give it to a library by `__cuda_array_interface__` (version 3). Deleting it frees the memory when the work
    that the default stream has by then is done; work of other streams has to be over.
    """

    def __init__(self, recipe: Recipe, memory: Any, index: int) -> None:
        self.shape = recipe.shape
        self.nbytes = recipe.nbytes
        self.device = f"cuda:{index}"
        self._index = index
        self._dtype = recipe.numpy_dtype
        self._memory = memory
        itemsize = recipe.spec.itemsize
        strides = [itemsize] * len(recipe.stored_shape)
        for axis in range(len(strides) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * recipe.stored_shape[axis + 1]
        order = recipe.inverse if recipe.inverse is not None else range(len(strides))
        self._strides = tuple(strides[axis] for axis in order)
        self.__cuda_array_interface__: Mapping[str, Any] = {
            "shape": self.shape,
            "typestr": recipe.numpy_dtype.str,
            "strides": None if recipe.inverse is None else self._strides,
            "data": (memory.pointer if recipe.nbytes else 0, False),
            "stream": DEFAULT_STREAM,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return gpu.CUDA, self._index

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """A capsule for `from_dlpack` of another library, whose work in `stream` sees the array complete.
        Raises BufferError: another device, a copy."""
        from transfer.transports.core.native import dlpack  # type: ignore[attr-defined]
        from transfer.transports.core.native.cuda import GpuEvent

        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this array is given in place only, on its own GPU")
        if stream not in (None, -1, DEFAULT_STREAM) and self.nbytes:
            ready = GpuEvent(self._memory.context)
            ready.record(DEFAULT_STREAM)
            ready.wait_in(stream)
            if gpu.is_payload(self._memory):
                self._memory.use(None, stream)
        dtype = self._dtype
        strides = tuple(stride // dtype.itemsize for stride in self._strides)
        pointer = self.__cuda_array_interface__["data"][0]
        kind, versioned = _DLPACK_KINDS[dtype.kind], max_version is not None and max_version[0] >= 1
        bits = 8 * dtype.itemsize
        return dlpack.capsule(
            self, pointer, gpu.CUDA, self._index, kind, bits, self.shape, strides, versioned
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the array is on a GPU: receive it without device=, or give it to torch or CuPy")

    def __repr__(self) -> str:
        return f"<GpuArray {self.__cuda_array_interface__['typestr']} {list(self.shape)} on {self.device}>"


def export_array(array: Any) -> tuple[int, bytes, Flat | None]:
    """(flags, header, memory or None) of an object with `__cuda_array_interface__`. Raises NotATensor."""
    try:
        return _export(array)
    except NotATensor:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error) as error:
        why = f"{type(error).__name__} {error}"
        raise NotATensor(f"{type(array).__name__}: its __cuda_array_interface__ is broken: {why}") from error


def _export(array: Any) -> tuple[int, bytes, Flat | None]:
    interface = array.__cuda_array_interface__
    memory = gpu.described(array)
    if memory is None:
        raise TypeError("it is no mapping")
    if any(length < 0 for length in interface["shape"]):
        raise ValueError("a negative length")
    code, text, itemsize = dtypes.describe_numpy(numpy_dtype(interface))
    if interface.get("mask") is not None:
        raise NotATensor(f"{type(array).__name__} has a mask")
    if interface.get("strides") is not None and not _is_dense(interface, itemsize):
        raise NotATensor(f"{type(array).__name__} is not in C order", hint="copy it in C order first")
    driver = cuda.load()
    index = None if driver is None else driver.number_of(memory.pointer)
    spec = TensorSpec(code, tuple(interface["shape"]), itemsize, None, text, (gpu.CUDA, index or 0))
    if driver is None or (index is None and spec.nbytes):
        raise NotATensor(f"{type(array).__name__}: no GPU of this process has its memory")
    flags, header = pack(spec)
    if index is None or not spec.nbytes:
        return flags, header, None
    begin, size = driver.range_of(memory.pointer)
    if begin and memory.pointer + spec.nbytes > begin + size:
        raise NotATensor(f"{type(array).__name__}: {spec.nbytes} bytes reach beyond its allocation")
    memory = replace(memory, index=index, nbytes=spec.nbytes)
    return flags, header, Flat(array, memory, driver.context(index))


def export_capsule(tensor: Any) -> tuple[int, bytes, Flat | None]:
    """The same of an object on a GPU that only has DLPack. Raises NotATensor."""
    from transfer.transports.core.native import dlpack  # type: ignore[attr-defined]

    what = type(tensor).__name__
    try:
        try:
            given = tensor.__dlpack__(stream=DEFAULT_STREAM, max_version=(1, 1))
        except TypeError:  # of version 0
            given = tensor.__dlpack__(stream=DEFAULT_STREAM)
        pointer, _, _, kind, bits, shape, strides = dlpack.read(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise NotATensor(f"{what} gives no memory by DLPack: {error}") from error
    row = dtypes.BY_NAME.get("bool" if kind == _DLPACK_BOOL else f"{_DLPACK_NAMES.get(kind)}{bits}")
    if row is None:
        raise NotATensor(f"{what} has elements of kind {kind} with {bits} bits")
    if strides is not None and not _is_dense({"shape": shape, "strides": strides}, 1):
        raise NotATensor(f"{what} has gaps in memory", hint="copy it in C order first")
    driver = cuda.load()
    index = None if driver is None else driver.number_of(pointer)
    spec = TensorSpec(row.code, shape, row.itemsize, None, "", (gpu.CUDA, index or 0))
    flags, header = pack(spec)
    if not spec.nbytes:
        return flags, header, None
    if driver is None or index is None:
        raise NotATensor(f"{what}: no GPU of this process has its memory")
    memory = gpu.DeviceMemory(gpu.CUDA, index, pointer, spec.nbytes, DEFAULT_STREAM)
    return flags, header, Flat(given, memory, driver.context(index))


class Flat:
    """The memory of an array as bytes. stream: in whose order it is ready."""

    def __init__(self, array: Any, memory: gpu.DeviceMemory, context: Any) -> None:
        self.array, self.memory, self.context = array, memory, context
        self.nbytes = memory.nbytes
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.pointer, False),
            "version": 3,
        }
        self.stream = DEFAULT_STREAM if memory.stream is None else memory.stream

    @property
    def device(self) -> DriverDevice:
        """For copies in the order of the array's stream."""
        return DriverDevice(self.context, self.stream, self.array)


def numpy_dtype(interface: Mapping[str, Any]) -> Any:
    """The dtype of an array's description. Raises NotSupported."""
    try:
        import numpy
    except ImportError as error:
        raise missing_library("an array of a GPU", error, "numpy") from error
    return numpy.dtype(interface["typestr"])


def _is_dense(interface: Mapping[str, Any], itemsize: int) -> bool:
    stride = itemsize
    for length, given in zip(reversed(interface["shape"]), reversed(interface["strides"]), strict=True):
        if length > 1 and given != stride:
            return False
        stride *= length
    return True
