"""Makes tensors on a GPU from a received header and payload: what `device=` asks for. Never run on a GPU."""

from __future__ import annotations

import re
import sys
from typing import Any

from transfer.tensors import dtypes
from transfer.tensors.build import NUMPY, TORCH, Recipe, TorchBuilder, builder_for
from transfer.tensors.device import CupyDevice, GpuDevice, Landing, TorchDevice, is_cupy
from transfer.tensors.gpu_array import DEFAULT_STREAM, Flat, GpuArray
from transfer.transports import cuda, gpu
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
        if index >= len(driver.uuids()):
            raise wrong(
                "device",
                f"cuda:{index}",
                f"the number of a GPU of this process, which has {len(driver.uuids())}",
            )
        self.index = index
        self.uuid: bytes = driver.uuid(index)
        self.context = driver.context(index)

    def check(self, recipe: Recipe) -> None:
        """Before the payload is read. Raises TensorMismatch, NotSupported."""
        NUMPY.check(recipe)
        if recipe.spec.text or not dtypes.BY_CODE[recipe.spec.code].numpy:
            raise TensorMismatch(
                "an array on a GPU cannot have this dtype here", hint="receive it on the host"
            )

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        """Makes an array over `data[offset:]`."""
        self.check(recipe)
        if self._is_here(data):
            if recipe.nbytes:
                data.use(None, DEFAULT_STREAM)
            return GpuArray(recipe, data, self.index)
        return self._copied(recipe, data, offset)

    def arrival(self, recipe: Recipe) -> Arrival:
        """For the payload of a tensor that was checked. Raises DeviceError: there is no memory on the GPU."""
        memory = cuda.GpuMemory(self.context, recipe.nbytes)
        where = gpu.DeviceMemory(gpu.CUDA, self.index, memory.pointer, recipe.nbytes, DEFAULT_STREAM)
        flat = Flat(memory, where, self.context)
        return Arrival(GpuArray(recipe, memory, self.index), flat, flat.device)

    def _copied(self, recipe: Recipe, data: Any, offset: int) -> Any:
        """A copy of a payload in memory of the host, or of another GPU."""
        return self.arrival(recipe).filled(memoryview(data).cast("B")[offset : offset + recipe.nbytes])

    def _is_here(self, data: Any) -> bool:
        return is_payload(data) and data.context.index == self.index


class TorchGpuBuilder(GpuBuilder):
    """The same as tensors of torch. Raises NotSupported."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        if not sys.modules["torch"].cuda.is_available():
            raise NotSupported(
                'like="torch" on a GPU, and this torch has no CUDA',
                hint="install a torch with CUDA, or receive a GpuArray without like=",
            )

    def check(self, recipe: Recipe) -> None:
        TORCH.check(recipe)

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        TORCH.check(recipe)
        torch = sys.modules["torch"]
        if not self._is_here(data) or not recipe.nbytes:
            return self._copied(recipe, data, offset)
        device = torch.device("cuda", self.index)
        stream = torch.cuda.current_stream(device)
        data.use(stream, int(stream.cuda_stream))
        flat = torch.as_tensor(_Described(data), device=device)
        return self._shaped(recipe, flat)

    def arrival(self, recipe: Recipe) -> Arrival:
        torch = sys.modules["torch"]
        flat = torch.empty(recipe.nbytes, dtype=torch.uint8, device=torch.device("cuda", self.index))
        return Arrival(self._shaped(recipe, flat), flat, TorchDevice(flat.device))

    def _shaped(self, recipe: Recipe, flat: Any) -> Any:
        tensor = flat.view(recipe.torch_dtype).reshape(recipe.stored_shape)
        return tensor if recipe.inverse is None else tensor.permute(recipe.inverse)


class CupyGpuBuilder(GpuBuilder):
    """The same as arrays of CuPy."""

    def build(self, recipe: Recipe, data: Any, offset: int = 0) -> Any:
        self.check(recipe)
        cupy = sys.modules["cupy"]
        if not self._is_here(data) or not recipe.nbytes:
            return self._copied(recipe, data, offset)
        stream = cupy.cuda.get_current_stream(self.index)
        data.use(stream, int(stream.ptr))
        return self._shaped(recipe, cupy.asarray(_Described(data)))

    def arrival(self, recipe: Recipe) -> Arrival:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(self.index):
            flat = cupy.empty(recipe.nbytes, "u1")
        return Arrival(self._shaped(recipe, flat), flat, CupyDevice(self.index))

    def _shaped(self, recipe: Recipe, flat: Any) -> Any:
        array = flat.view(recipe.numpy_dtype).reshape(recipe.stored_shape)
        return array if recipe.inverse is None else array.transpose(recipe.inverse)


class Arrival:
    """A new tensor on a GPU, and its payload on the way there."""

    __slots__ = ("_flat", "_landing", "tensor")

    def __init__(self, tensor: Any, flat: Any, device: GpuDevice) -> None:
        self.tensor = tensor
        self._flat, self._landing = flat, Landing(device)

    def buffer(self) -> Any:
        """Returns pinned memory to read the payload into, or None. Raises InternalError."""
        return self._landing.buffer(self._flat) if self._flat.nbytes else None

    def landed(self, nbytes: int) -> None:
        """So much of the payload is in that memory."""
        self._landing.landed(nbytes)

    def filled(self, data: Any) -> Any:
        """The tensor, with the payload from that memory or another one."""
        if self._flat.nbytes:
            self._landing.fill(self._flat, data)
        return self.tensor


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
    raise NotATensor(
        f"like={like!r:.80} makes no arrays on a GPU", hint='give "torch", "cupy" or nothing, or device="cpu"'
    )
