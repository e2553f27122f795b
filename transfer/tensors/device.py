"""Tensors on a GPU: copied through pinned slabs, chunk by chunk, in the order of the device's streams.

A send waits, on the device, for the work of the caller's current stream. A received tensor is usable on the
current stream as soon as the call returns. Torch and CuPy are used if the caller has imported them. Not
tested on a GPU: tests use a stand-in for the copies and their order.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final, Protocol

from transfer.transports.forking import undivided
from transfer.transports.gpu import SLAB, SLABS, Chunk, staging_plan


class GpuDevice(Protocol):
    """One GPU, as a library offers it, with the library's streams and events.

    `flat` is a tensor's memory as the library's contiguous array of bytes. Copies are asynchronous: they run
    on their stream, in its order.
    """

    def current(self) -> Any:
        """Returns the stream of the caller's work."""

    def side(self) -> Any:
        """Makes a further stream, for copies."""

    def record(self, stream: Any) -> Any:
        """Records an event after all work that the stream has now."""

    def wait(self, stream: Any, event: Any) -> None:
        """Makes later work of the stream wait for the event, on the device."""

    def synchronize(self, event: Any) -> None:
        """Blocks the calling thread until the event."""

    def pinned(self, nbytes: int) -> Any:
        """Allocates host memory that the device can copy from and to by itself."""

    def view(self, slab: Any) -> memoryview:
        """Returns the bytes of pinned memory."""

    def copy_out(self, slab: Any, flat: Any, chunk: Chunk, stream: Any) -> None:
        """Starts to copy the chunk from the tensor to the beginning of the slab."""

    def copy_in(self, flat: Any, chunk: Chunk, slab: Any, stream: Any) -> None:
        """Starts to copy the chunk from the beginning of the slab to the tensor."""

    def keep(self, flat: Any, stream: Any) -> None:
        """Keeps the tensor's memory allocated until the stream is done, even if the tensor is freed."""


class StagingBuffer:
    """The slabs of one device, and the copies through them. Thread-safe: one copy at a time."""

    def __init__(self, device: GpuDevice, slab: int = SLAB, slabs: int = SLABS) -> None:
        self._device = device
        self._size = slab
        self._count = slabs
        self._lock = threading.Lock()
        self._slabs: list[Any] = []
        #: the event after the last copy that read or wrote the slab
        self._busy: list[Any] = []

    def to_host(self, flat: Any, target: memoryview) -> None:
        """Copies a tensor's bytes to host memory of their length; complete when it returns."""
        device = self._device
        plan = staging_plan(target.nbytes, self._size, self._count)
        with self._lock:
            self._prepare(min(len(plan), self._count))
            stream = device.side()
            device.wait(stream, device.record(device.current()))
            for number, chunk in enumerate(plan):
                if number >= self._count:
                    self._drain(plan[number - self._count], target)
                self._settle(chunk.slab)  # the slab must not change while it is read
                device.copy_out(self._slabs[chunk.slab], flat, chunk, stream)
                self._busy[chunk.slab] = device.record(stream)
            for chunk in plan[max(0, len(plan) - self._count) :]:
                self._drain(chunk, target)

    def to_device(self, source: memoryview, flat: Any) -> None:
        """Copies host memory into a tensor. The current stream waits for the copy, the host does not;
        `source` has been read when this returns."""
        device = self._device
        plan = staging_plan(source.nbytes, self._size, self._count)
        with self._lock:
            self._prepare(min(len(plan), self._count))
            stream = device.side()
            # Work that still reads the tensor's old contents runs first.
            device.wait(stream, device.record(device.current()))
            for chunk in plan:
                self._settle(chunk.slab)
                slab = self._slabs[chunk.slab]
                device.view(slab)[: chunk.length] = source[chunk.offset : chunk.offset + chunk.length]
                device.copy_in(flat, chunk, slab, stream)
                self._busy[chunk.slab] = device.record(stream)
            device.keep(flat, stream)
            device.wait(device.current(), device.record(stream))

    def settle(self) -> None:
        """Blocks until the current stream's work of this moment is done."""
        self._device.synchronize(self._device.record(self._device.current()))

    # -- call these under the lock

    def _prepare(self, count: int) -> None:
        while len(self._slabs) < count:
            self._slabs.append(self._device.pinned(self._size))
            self._busy.append(None)

    def _settle(self, slab: int) -> None:
        event, self._busy[slab] = self._busy[slab], None
        if event is not None:
            self._device.synchronize(event)

    def _drain(self, chunk: Chunk, target: memoryview) -> None:
        self._settle(chunk.slab)
        slab = self._device.view(self._slabs[chunk.slab])
        target[chunk.offset : chunk.offset + chunk.length] = slab[: chunk.length]


# --- libraries ------------------------------------------------------------------------------------


class _Streams:
    """The common part of streams and events of both libraries."""

    _side: Any

    def side(self) -> Any:
        return self._side

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Any) -> None:
        event.synchronize()


class TorchDevice(_Streams):
    """A CUDA (or ROCm) device of torch."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._side = torch.cuda.Stream(device)

    def current(self) -> Any:
        return self._torch.cuda.current_stream(self._device)

    def record(self, stream: Any) -> Any:
        event = self._torch.cuda.Event()
        event.record(stream)
        return event

    def pinned(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)

    def view(self, slab: Any) -> memoryview:
        return memoryview(slab.numpy())

    def copy_out(self, slab: Any, flat: Any, chunk: Chunk, stream: Any) -> None:
        with self._torch.cuda.stream(stream):
            part = flat[chunk.offset : chunk.offset + chunk.length]
            slab[: chunk.length].copy_(part, non_blocking=True)

    def copy_in(self, flat: Any, chunk: Chunk, slab: Any, stream: Any) -> None:
        with self._torch.cuda.stream(stream):
            part = flat[chunk.offset : chunk.offset + chunk.length]
            part.copy_(slab[: chunk.length], non_blocking=True)

    def keep(self, flat: Any, stream: Any) -> None:
        flat.record_stream(stream)


class CupyDevice(_Streams):
    """A device of CuPy. `with stream:` makes one of its streams current."""

    def __init__(self, cupy: Any, index: int) -> None:
        self._cuda = cupy.cuda
        self._index = index
        with self._cuda.Device(index):
            self._side = self._cuda.Stream(non_blocking=True)
        self._kept: list[tuple[Any, Any]] = []

    def current(self) -> Any:
        return self._cuda.get_current_stream()

    def record(self, stream: Any) -> Any:
        with self._cuda.Device(self._index):
            event = self._cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    def pinned(self, nbytes: int) -> Any:
        return self._cuda.alloc_pinned_memory(nbytes)

    def view(self, slab: Any) -> memoryview:
        return memoryview(slab).cast("B")

    def copy_out(self, slab: Any, flat: Any, chunk: Chunk, stream: Any) -> None:
        runtime = self._cuda.runtime
        kind = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(slab.ptr, flat.data.ptr + chunk.offset, chunk.length, kind, stream.ptr)

    def copy_in(self, flat: Any, chunk: Chunk, slab: Any, stream: Any) -> None:
        runtime = self._cuda.runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(flat.data.ptr + chunk.offset, slab.ptr, chunk.length, kind, stream.ptr)

    def keep(self, flat: Any, stream: Any) -> None:
        """Keeps the array itself until the copies are done, since CuPy's pool does not know about streams."""
        self._kept = [kept for kept in self._kept if not kept[1].done]
        self._kept.append((flat, self.record(stream)))


#: by library, device and process: slabs that a forked child inherits belong to its parent
_stages: Final[dict[tuple[str, int, int], StagingBuffer]] = {}
_lock = threading.Lock()


def torch_stage(tensor: Any) -> StagingBuffer:
    """Returns the slabs for the device of a torch tensor; made once for each device."""
    torch = sys.modules["torch"]
    device = tensor.device
    return _stage("torch", int(device.index or 0), lambda: TorchDevice(torch, device))


def cupy_stage(array: Any) -> StagingBuffer:
    """Returns the slabs for the device of a CuPy array."""
    cupy = sys.modules["cupy"]
    index = int(array.device.id)
    return _stage("cupy", index, lambda: CupyDevice(cupy, index))


def _stage(library: str, index: int, make: Any) -> StagingBuffer:
    key = library, index, os.getpid()
    with undivided(), _lock:
        found = _stages.get(key)
        if found is None:
            found = _stages[key] = StagingBuffer(make())
        return found


def is_cupy(obj: Any) -> bool:
    """Whether it is a CuPy array. Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(obj, cupy.ndarray)
