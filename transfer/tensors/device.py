"""Tensors on a GPU, through pinned host memory, in the order of the caller's current stream.

A send copies on the current stream, after its work of that moment, and waits for the copy without the GIL. A
received tensor is usable on the current stream as soon as the call returns; the host does not wait. Torch and
CuPy are used if the caller has imported them.

Up to PINNED_MOST bytes the host memory of a message is pinned: the copy runs at the speed of the bus, and the
library keeps the memory for later ones. A larger message passes through slabs, so that no more stays pinned.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from transfer.transports.errors import InternalError

#: bytes of a message whose host memory is pinned as a whole
PINNED_MOST: Final = 256 << 20
#: bytes of one pinned slab, and how many take turns
SLAB: Final = 32 << 20
SLABS: Final = 3


class Slab(NamedTuple):
    """memory: pinned, as its library has it; view: the same bytes, as a numpy array of uint8."""

    memory: Any
    view: Any


class GpuDevice(Protocol):
    """One GPU, as a library offers it. `flat` is a tensor's memory as the library's array of bytes."""

    def pinned(self, nbytes: int) -> Slab:
        """Returns host memory that the device copies from and to by itself. It is given to nobody else as
        long as its view lives and copies of it run."""

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int) -> Any:
        """Starts a copy of flat[start : start + nbytes] to the slab, on the current stream; an event."""

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int) -> Any:
        """The same from the slab to the tensor."""

    def record(self) -> Any:
        """Records an event on the current stream."""


def to_host(device: GpuDevice, flat: Any) -> Any:
    """Returns a tensor's bytes in memory of their own. The GIL is free during copies and waits."""
    nbytes = int(flat.nbytes)
    if nbytes <= PINNED_MOST:
        slab = pinned(device, nbytes)
        device.copy_out(flat, 0, slab, nbytes).synchronize()
        return slab.view
    host = _pages(nbytes)
    running: deque[tuple[int, int, Slab, Any]] = deque()
    for number, (start, length) in enumerate(_pieces(nbytes)):
        slab = pinned(device, SLAB) if number < SLABS else _take_off(running, host)
        running.append((start, length, slab, device.copy_out(flat, start, slab, length)))
    while running:
        _take_off(running, host)
    return host


def _to_device(device: GpuDevice, source: Any, flat: Any) -> None:
    """Copies host memory (a numpy array of uint8) into a tensor. `source` has been read when it returns."""
    running: deque[tuple[Slab, Any]] = deque()
    for number, (start, length) in enumerate(_pieces(source.nbytes)):
        if number < SLABS:
            slab = pinned(device, min(SLAB, source.nbytes))
        else:
            slab, event = running.popleft()
            event.synchronize()
        slab.view[:length] = source[start : start + length]
        running.append((slab, device.copy_in(slab, flat, start, length)))


class Landing:
    """Where a payload for a tensor on a GPU is read to: pinned memory, unless it is too large for that."""

    __slots__ = ("_device", "_slab")

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._slab: Slab | None = None

    def buffer(self, nbytes: int) -> Any:
        """Returns memory to read the payload into, or None. Raises InternalError."""
        if not 0 < nbytes <= PINNED_MOST:
            return None
        self._slab = pinned(self._device, nbytes)
        return self._slab.view

    def holds(self, data: Any) -> bool:
        """Whether this is the memory of `buffer`."""
        return self._slab is not None and data is self._slab.view

    def fill(self, flat: Any, data: Any) -> None:
        """Copies the payload, from `buffer` or anywhere else; the current stream waits for it."""
        import numpy

        if self._slab is not None and self.holds(data):
            self._device.copy_in(self._slab, flat, 0, flat.nbytes)
        else:
            _to_device(self._device, numpy.frombuffer(data, "u1"), flat)


def settle(device: GpuDevice) -> None:
    """Blocks until the current stream's work of this moment is done."""
    device.record().synchronize()


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """(first byte, length) of each slab's part."""
    for start in range(0, nbytes, SLAB):
        yield start, min(SLAB, nbytes - start)


def _take_off(running: deque[tuple[int, int, Slab, Any]], host: Any) -> Slab:
    """Copies what the oldest slab has received to its place. Returns the slab."""
    start, length, slab, event = running.popleft()
    event.synchronize()
    host[start : start + length] = slab.view[:length]
    return slab


def _pages(nbytes: int) -> Any:
    """Memory that is neither zeroed nor faulted in under the GIL, in huge pages: fewer faults to wait for.

    Raises InternalError.
    """
    import numpy

    try:
        pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise InternalError(f"no memory for {nbytes} bytes from a GPU: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return numpy.frombuffer(pages, "u1")


def pinned(device: GpuDevice, nbytes: int) -> Slab:
    """As `device.pinned`. Raises InternalError where that memory is used up."""
    try:
        return device.pinned(nbytes)
    except RuntimeError as error:  # torch's and CuPy's errors are of this kind
        reason = str(error).partition("\n")[0]
        raise InternalError(
            f"no pinned memory for {nbytes} bytes between GPU and host: {reason}",
            hint="send smaller tensors, or fewer at a time; it counts as memory of the container",
        ) from error


# --- libraries ------------------------------------------------------------------------------------


class TorchDevice:
    """A CUDA (or ROCm) device of torch, whose allocator knows which copies of pinned memory still run."""

    def __init__(self, device: Any) -> None:
        self._torch = sys.modules["torch"]
        self._device = device

    def record(self) -> Any:
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def pinned(self, nbytes: int) -> Slab:
        with self._torch.cuda.device(self._device):  # else it opens the thread's current device
            memory = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)
        return Slab(memory, memory.numpy())

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int) -> Any:
        slab.memory[:nbytes].copy_(flat[start : start + nbytes], non_blocking=True)
        return self.record()

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int) -> Any:
        flat[start : start + nbytes].copy_(slab.memory[:nbytes], non_blocking=True)
        return self.record()


#: pinned memory of CuPy and the event after its last copy: its pool would give it away before that
_in_use: Final[deque[tuple[Any, Any]]] = deque()
#: without it two threads would look at one entry and remove two
_ending: Final = threading.Lock()


class CupyDevice:
    """A device of CuPy, by its number."""

    def __init__(self, index: int) -> None:
        self._cuda = sys.modules["cupy"].cuda
        self._index = index

    def record(self) -> Any:
        with self._cuda.Device(self._index):
            event = self._cuda.Event(disable_timing=True)
            event.record(self._stream())
        return event

    def pinned(self, nbytes: int) -> Slab:
        import numpy

        with _ending:
            while _in_use and _in_use[0][1].done:
                _in_use.popleft()
        with self._cuda.Device(self._index):
            memory = self._cuda.alloc_pinned_memory(nbytes)
        return Slab(memory, numpy.frombuffer(memory, "u1", nbytes))

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int) -> Any:
        return self._copy(slab.memory.ptr, flat.data.ptr + start, nbytes, "memcpyDeviceToHost")

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int) -> Any:
        event = self._copy(flat.data.ptr + start, slab.memory.ptr, nbytes, "memcpyHostToDevice")
        _in_use.append((slab.memory, event))
        return event

    def _copy(self, target: int, source: int, nbytes: int, kind: str) -> Any:
        runtime = self._cuda.runtime
        with self._cuda.Device(self._index):
            runtime.memcpyAsync(target, source, nbytes, getattr(runtime, kind), self._stream().ptr)
        return self.record()

    def _stream(self) -> Any:
        """The current stream of this device, which need not be the thread's current device."""
        return self._cuda.get_current_stream(self._index)


def is_cupy(obj: Any) -> bool:
    """Whether it is a CuPy array. Does not import CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(obj, cupy.ndarray)


def device_of(tensor: Any) -> GpuDevice:
    """Returns the device that holds a tensor of torch or CuPy."""
    return CupyDevice(int(tensor.device.id)) if is_cupy(tensor) else TorchDevice(tensor.device)


def moved(tensor: Any, device: Any) -> Any:
    """Returns a copy of a torch tensor of the host on a device; as `Tensor.to`, at the speed of the bus."""
    if device.type != "cuda" or tensor.nbytes < SLAB or not tensor.is_contiguous():
        return tensor.to(device)
    torch = sys.modules["torch"]
    copy = torch.empty_like(tensor, device=device)
    bytes_of = tensor.reshape(-1).view(torch.uint8).numpy()
    _to_device(TorchDevice(copy.device), bytes_of, copy.reshape(-1).view(torch.uint8))
    return copy
