"""Makes tensors on a GPU from a received header and payload: what `device=` asks for. Never run on a GPU."""

from __future__ import annotations

import re
import sys
from typing import Any

from transfer.tensors import dtypes
from transfer.tensors.build import NUMPY, TORCH, Recipe, TorchBuilder, builder_for
from transfer.tensors.device import is_cupy
from transfer.tensors.gpu_array import DEFAULT_STREAM, GpuArray, OwnMemory, copy_in
from transfer.transports import cuda
from transfer.transports.arguments import wrong
from transfer.transports.errors import DeviceError, NotATensor, NotSupported, TensorMismatch
from transfer.transports.gpu import is_payload

_DEVICE = re.compile(r"cuda(?::(\d{1,4}))?|(\d{1,4})", re.ASCII)


class GpuBuilder:
    """Makes arrays on one GPU: over the payload where the peer has left it there, else by a copy."""

    def __init__(self, index: int) -> None:
        driver = cuda.load()
        if driver is None:
            raise DeviceError(
                "no_cuda",
                "no CUDA driver, or no GPU, is there for device=",
                hint="`transfer doctor` says what is missing",
            )
        self.index = index
        self.uuid: bytes = driver.uuid(index)
        self.context = driver.context(index)

    def check(self, recipe: Recipe) -> None:
        """Before the payload is read. Raises TensorMismatch, NotSupported."""
        NUMPY.check(recipe)
        if recipe.spec.text or not dtypes.BY_CODE[recipe.spec.code].numpy:
            raise TensorMismatch(
                "__cuda_array_interface__ has no such dtype", hint='receive it with like="torch"'
            )

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """Makes an array over `data[offset:]`."""
        self.check(recipe)
        if self._is_here(data):
            if recipe.nbytes:
                data.use(None, DEFAULT_STREAM)
            return GpuArray(recipe, data, self.index)
        memory = OwnMemory(self.context, recipe.nbytes)
        if recipe.nbytes:
            source = memoryview(data).cast("B")[offset : offset + recipe.nbytes]
            copy_in(self.context, memory.pointer, source, DEFAULT_STREAM)
        return GpuArray(recipe, memory, self.index)

    def _is_here(self, data: Any) -> bool:
        return is_payload(data) and data.context.index == self.index


class TorchGpuBuilder(GpuBuilder):
    """The same as tensors of torch."""

    def check(self, recipe: Recipe) -> None:
        TORCH.check(recipe)

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        TORCH.check(recipe)
        torch = sys.modules["torch"]
        device = torch.device("cuda", self.index)
        if not self._is_here(data) or not recipe.nbytes:
            return TorchBuilder(device).build(recipe, data, offset)
        stream = torch.cuda.current_stream(device)
        data.use(stream, int(stream.cuda_stream))
        flat = torch.as_tensor(_Described(data), device=device)
        tensor = flat.view(recipe.torch_dtype).reshape(recipe.stored_shape)
        return tensor if recipe.inverse is None else tensor.permute(recipe.inverse)


class CupyGpuBuilder(GpuBuilder):
    """The same as arrays of CuPy."""

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        self.check(recipe)
        cupy = sys.modules["cupy"]
        if not self._is_here(data) or not recipe.nbytes:
            with cupy.cuda.Device(self.index):
                return cupy.asarray(NUMPY.build(recipe, data, offset))
        stream = cupy.cuda.get_current_stream(self.index)
        data.use(stream, int(stream.ptr))
        array = cupy.asarray(_Described(data)).view(recipe.numpy_dtype).reshape(recipe.stored_shape)
        return array if recipe.inverse is None else array.transpose(recipe.inverse)


class _Described:
    """The bytes of a payload for a library that takes them in place, after `use` of its stream."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload
        self.__cuda_array_interface__ = {
            "shape": (payload.nbytes,),
            "typestr": "|u1",
            "data": (payload.pointer, False),
            "version": 3,
        }


def gpu_builder(device: Any, like: Any) -> Any:
    """The builder for `device=` and `like=`. Raises NotATensor, NotSupported, ArgumentError, DeviceError."""
    name = str(device)
    if name == "cpu":
        return builder_for(like)
    named = _DEVICE.fullmatch(name)
    if named is None or isinstance(device, bool):
        raise wrong("device", device, '"cuda:0", the number of a GPU, or "cpu"')
    number = named[1] or named[2] or "0"
    if like is None:
        return GpuBuilder(int(number))
    cupy = sys.modules.get("cupy")
    if like == "cupy" or (cupy is not None and (like is cupy or is_cupy(like))):
        if cupy is None:
            raise NotSupported('like="cupy", and CuPy is not imported', hint="import cupy")
        return CupyGpuBuilder(int(number))
    if isinstance(builder_for(like), TorchBuilder):
        return TorchGpuBuilder(int(number))
    raise NotATensor(f"like={like!r:.80} on a GPU", hint='give "torch", "cupy", or nothing')
