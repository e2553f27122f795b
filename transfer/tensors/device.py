"""Tensors on a GPU, through pinned host memory, in the order of the caller's current stream.

A send copies on the current stream, after its work of that moment, and waits for the copy without the GIL. A
received tensor is usable on the current stream as soon as the call returns; the host does not wait. Torch and
CuPy are used if the caller has imported them.

The host memory of a message is pinned: the copy runs at the speed of the bus. Up to LIBRARY_MOST bytes the
library's allocator has it, and keeps it; above pinned.py, within a limit. Beyond that limit a message passes
through slabs, from or to memory that is not pinned.

In pinned memory one piece of a message is copied while others are on the wire: `begin_to_host` and `Landing`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol

from transfer.tensors.pinned import POOL, pages
from transfer.transports import core
from transfer.transports.errors import InternalError
from transfer.transports.gpu import is_payload

#: bytes of a message whose host memory is of the library's allocator
LIBRARY_MOST: Final = 256 << 20
#: bytes of one slab, and threads that copy from and to slabs: one alone waits for page faults
SLAB: Final = 32 << 20
THREADS: Final = min(4, os.cpu_count() or 1)
#: bytes of one copy between device and pinned memory while others are on the wire
PIECE: Final = 4 << 20
#: one more than can be copied at once is on its way from or to the device
SLABS: Final = THREADS + 1
#: of cudaHostRegister: for every device
_PORTABLE: Final = 1


class Slab(NamedTuple):
    """memory: pinned, as its library has it; view: the same bytes, as a numpy array of uint8; pooled: not of
    the library's allocator, which knows which copies still run."""

    memory: Any
    view: Any
    pooled: bool = False


class GpuDevice(Protocol):
    """One GPU, as a library offers it. `flat` is a tensor's memory as the library's array of bytes."""

    def pinned(self, nbytes: int) -> Slab:
        """Returns host memory that the device copies from and to by itself. It is given to nobody else as
        long as its view lives and copies of it run."""

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int, at: int = 0) -> Any:
        """Starts a copy of flat[start : start + nbytes] to the slab from `at` on, on the current stream; an
        event."""

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int, at: int = 0) -> Any:
        """The same from the slab to the tensor."""

    def record(self) -> Any:
        """Records an event on the current stream."""

    def hold(self, slab: Slab, event: Any) -> None:
        """Keeps a slab until an event, unless its allocator knows which copies of it run."""

    def pin(self, memory: Any) -> Callable[[], object]:
        """Pins memory (a numpy array of uint8) that is not the library's. Returns what unpins it, from any
        thread. Raises RuntimeError, InternalError."""

    def slab(self, view: Any) -> Slab:
        """Returns memory of the pool (a numpy array of uint8) as a slab."""

    def current(self) -> tuple[Any, int]:
        """The current stream: the library's object, and its number for the driver."""

    def address(self, flat: Any) -> int:
        """Where a flat tensor lies on the device."""

    def copied(self, flat: Any, stream: Any) -> tuple[Any, int]:
        """A copy on the device in memory of the library's allocator, in the order of a stream; its
        address."""


def to_host(device: GpuDevice, flat: Any) -> Any:
    """Returns a tensor's bytes in memory of their own. The GIL is free during copies and waits."""
    import numpy

    nbytes = int(flat.nbytes)
    slab = _whole(device, nbytes)
    if slab is not None:
        device.copy_out(flat, 0, slab, nbytes).synchronize()
        return slab.view
    host = numpy.frombuffer(pages(nbytes), "u1")
    running: deque[Future[Slab]] = deque()
    with _threads() as threads:
        for number, (start, length) in enumerate(_pieces(nbytes, SLAB)):
            if number < SLABS:
                slab = pinned(device, SLAB)
            else:
                future = running.popleft()
                slab = future.result()
            event = device.copy_out(flat, start, slab, length)
            running.append(threads.submit(_take_off, event, slab, host[start : start + length]))
        for future in running:
            future.result()
    return host


def begin_to_host(device: GpuDevice, flat: Any) -> Any:
    """As `to_host`, but the copies have only begun: memory whose beginning a connection may write already,
    and for which all others wait (core/native/filling.pyx). The caller calls its `complete`."""
    slab = _whole(device, int(flat.nbytes)) if core.IMPLEMENTATION == "native" else None
    if slab is None:
        return to_host(device, flat)
    from transfer.transports.core.native.filling import Filling

    return Filling(slab.view, _Departure(device, flat, slab))


class _Departure:
    """The copies of one tensor to its slab."""

    def __init__(self, device: GpuDevice, flat: Any, slab: Slab) -> None:
        self._kept: tuple[Any, Slab] | None = (flat, slab)
        self._events = []
        try:
            for start, length in _pieces(int(flat.nbytes), PIECE):
                event = device.copy_out(flat, start, slab, length, start)
                self._events.append((start + length, event))
        finally:  # whatever becomes of this object
            device.hold(slab, device.record())

    def __call__(self, filling: Any) -> None:
        """Waits for all of them."""
        for end, event in self._events:
            event.synchronize()
            filling.advance(end)
        self._events, self._kept = [], None
        filling.advance(filling.nbytes)


def _to_device(device: GpuDevice, source: Any, flat: Any) -> None:
    """Copies host memory (a numpy array of uint8) into a tensor. `source` has been read when it returns."""
    if source.nbytes <= SLAB:
        device.copy_in(_put_on(None, pinned(device, source.nbytes), source), flat, 0, source.nbytes)
        return
    filling: deque[tuple[int, int, Future[Slab]]] = deque()
    copying: deque[tuple[Any, Slab]] = deque()

    def copy() -> None:
        start, length, future = filling.popleft()
        slab = future.result()
        copying.append((device.copy_in(slab, flat, start, length), slab))

    with _threads() as threads:
        for number, (start, length) in enumerate(_pieces(source.nbytes, SLAB)):
            event, slab = (None, pinned(device, SLAB)) if number < SLABS else copying.popleft()
            filled = threads.submit(_put_on, event, slab, source[start : start + length])
            filling.append((start, length, filled))
            if len(filling) == THREADS:
                copy()
        while filling:
            copy()


class Landing:
    """Where a payload for a tensor on a GPU is read to: pinned memory, as long as there is room. What has
    come is copied to the device while the rest is read."""

    __slots__ = ("_copied", "_device", "_flat", "_slab")

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._slab: Slab | None = None
        self._flat: Any = None
        self._copied = 0

    def buffer(self, flat: Any) -> Any:
        """Returns memory to read the payload of a flat tensor into, or None. Raises InternalError."""
        self._slab, self._flat, self._copied = _whole(self._device, int(flat.nbytes)), flat, 0
        return None if self._slab is None else self._slab.view

    def landed(self, nbytes: int) -> None:
        """So much of the payload is in the memory of `buffer`."""
        if self._slab is not None and nbytes > self._copied:
            start, self._copied = self._copied, nbytes
            self._device.copy_in(self._slab, self._flat, start, nbytes - start, start)

    def holds(self, data: Any) -> bool:
        """Whether this is the memory of `buffer`."""
        return self._slab is not None and data is self._slab.view

    def takes(self, data: Any) -> bool:
        """Whether `fill` takes this as it is: that memory, or a payload on a GPU."""
        return self.holds(data) or is_payload(data)

    def fill(self, flat: Any, data: Any) -> None:
        """Copies the payload, from `buffer` or anywhere else; the current stream waits for it."""
        import numpy

        if is_payload(data):
            kept, stream = self._device.current()
            data.use(kept, stream)
            data.context.copy(self._device.address(flat), data.pointer, data.nbytes, stream)
        elif self.holds(data):
            self.landed(int(flat.nbytes))
        else:
            _to_device(self._device, numpy.frombuffer(data, "u1"), flat)


def settle(device: GpuDevice) -> None:
    """Blocks until the current stream's work of this moment is done."""
    device.record().synchronize()


def _whole(device: GpuDevice, nbytes: int) -> Slab | None:
    """Returns pinned memory for a whole message, or None: there is no room for it. Raises InternalError."""
    import numpy

    if nbytes <= LIBRARY_MOST:
        return pinned(device, nbytes)
    region = POOL.take(nbytes, partial(pin_pages, device))
    return None if region is None else device.slab(numpy.frombuffer(region, "u1"))


def pin_pages(device: GpuDevice, memory: mmap.mmap) -> Callable[[], object]:
    """For `PinnedPool.take`."""
    import numpy

    view = numpy.frombuffer(memory, "u1")

    def fault_in(piece: tuple[int, int]) -> None:
        start, length = piece
        view[start : start + length : mmap.PAGESIZE] = 0

    with _threads() as threads:  # else the driver would do it in one thread
        list(threads.map(fault_in, _pieces(view.nbytes, SLAB)))
    return device.pin(view)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "transfer-gpu")


def _pieces(nbytes: int, size: int) -> Iterator[tuple[int, int]]:
    """(first byte, length) of each part of at most this size."""
    for start in range(0, nbytes, size):
        yield start, min(size, nbytes - start)


def _take_off(event: Any, slab: Slab, target: Any) -> Slab:
    """Copies what a slab has received from the device."""
    event.synchronize()
    target[:] = slab.view[: target.nbytes]
    return slab


def _put_on(event: Any, slab: Slab, source: Any) -> Slab:
    """Copies to a slab, after its last copy to the device."""
    if event is not None:
        event.synchronize()
    slab.view[: source.nbytes] = source
    return slab


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

    def pin(self, memory: Any) -> Callable[[], object]:
        address = int(memory.ctypes.data)
        self._runtime("cudaHostRegister", address, memory.nbytes, _PORTABLE)
        return partial(self._runtime, "cudaHostUnregister", address)

    def _runtime(self, call: str, *arguments: int) -> None:
        """Calls CUDA's runtime (ROCm's under the same name), without the GIL. Raises InternalError."""
        torch = self._torch
        with torch.cuda.device(self._device):
            code = int(getattr(torch.cuda.cudart(), call)(*arguments))
            if code:
                # The runtime remembers it, and torch would report it after the caller's next kernel.
                with contextlib.suppress(RuntimeError):
                    torch.zeros(1, device=self._device)
                raise InternalError(f"{call} returns {code}")

    def slab(self, view: Any) -> Slab:
        return Slab(self._torch.from_numpy(view), view, pooled=True)

    def current(self) -> tuple[Any, int]:
        stream = self._torch.cuda.current_stream(self._device)
        return stream, int(stream.cuda_stream)

    def address(self, flat: Any) -> int:
        return int(flat.data_ptr())

    def copied(self, flat: Any, stream: Any) -> tuple[Any, int]:
        with self._torch.cuda.stream(stream):
            copy = flat.clone()
        return copy, self.address(copy)

    def pinned(self, nbytes: int) -> Slab:
        with self._torch.cuda.device(self._device):  # else it opens the thread's current device
            memory = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)
        return Slab(memory, memory.numpy())

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int, at: int = 0) -> Any:
        slab.memory[at : at + nbytes].copy_(flat[start : start + nbytes], non_blocking=True)
        return self.record()

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int, at: int = 0) -> Any:
        flat[start : start + nbytes].copy_(slab.memory[at : at + nbytes], non_blocking=True)
        event = self.record()
        self.hold(slab, event)
        return event

    def hold(self, slab: Slab, event: Any) -> None:
        if slab.pooled:
            POOL.hold(slab.view, event.query)


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

    def pin(self, memory: Any) -> Callable[[], object]:
        address = int(memory.ctypes.data)
        with self._cuda.Device(self._index):
            self._cuda.runtime.hostRegister(address, memory.nbytes, _PORTABLE)
        return partial(self._unpin, address)

    def _unpin(self, address: int) -> None:
        with self._cuda.Device(self._index):
            self._cuda.runtime.hostUnregister(address)

    def slab(self, view: Any) -> Slab:
        return Slab(SimpleNamespace(ptr=int(view.ctypes.data)), view, pooled=True)

    def current(self) -> tuple[Any, int]:
        stream = self._stream()
        return stream, int(stream.ptr)

    def address(self, flat: Any) -> int:
        return int(flat.data.ptr)

    def copied(self, flat: Any, stream: Any) -> tuple[Any, int]:
        with self._cuda.Device(self._index), stream:
            copy = flat.copy()
        return copy, self.address(copy)

    def pinned(self, nbytes: int) -> Slab:
        import numpy

        POOL.collect()
        with self._cuda.Device(self._index):
            memory = self._cuda.alloc_pinned_memory(nbytes)
        return Slab(memory, numpy.frombuffer(memory, "u1", nbytes))

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int, at: int = 0) -> Any:
        return self._copy(slab.memory.ptr + at, flat.data.ptr + start, nbytes, "memcpyDeviceToHost")

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int, at: int = 0) -> Any:
        event = self._copy(flat.data.ptr + start, slab.memory.ptr + at, nbytes, "memcpyHostToDevice")
        self.hold(slab, event)
        return event

    def hold(self, slab: Slab, event: Any) -> None:
        # CuPy's allocator would give it to the next who asks, before the copy has run.
        POOL.hold(slab.view, lambda: bool(event.done))

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
