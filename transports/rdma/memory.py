"""Registered memory of one protection domain: slabs that are registered once and reused, the user's regions,
and memory that is registered for a single send."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from transfer.transports.core import address_of
from transfer.transports.core.buffers import flat_view
from transfer.transports.errors import InternalError, RegistrationError
from transfer.transports.rdma.driver import DeviceHandle, MemoryRegion
from transfer.transports.rdma.registration_cache import RegistrationCache
from transfer.transports.slab_pool import SlabPool


class RegisteredDeviceMemory(NamedTuple):
    """Memory that the CPU cannot read, as the payload of a frame. owner: kept alive while it is used.
    dmabuf: returns (descriptor, offset), and the descriptor is ours; None: the address itself is
    registered (peermem)."""

    address: int
    nbytes: int
    owner: Any
    dmabuf: Callable[[], tuple[int, int]] | None = None

    @classmethod
    def of(cls, data: Any) -> RegisteredDeviceMemory | None:
        """For an object whose `__cuda_array_interface__` has its address; `gpu.Exportable` has a dma-buf
        too."""
        interface = getattr(data, "__cuda_array_interface__", None)
        if interface is None:
            return None
        return cls(int(interface["data"][0]), int(data.nbytes), data, getattr(data, "dmabuf", None))


class _Slab:
    """Registered memory of the host. received: the device writes it; else peers read it."""

    def __init__(self, device: DeviceHandle, received: bool, size: int) -> None:
        try:
            self.memory = mmap.mmap(-1, size)
        except (OSError, MemoryError, OverflowError) as error:
            raise InternalError(f"no memory for {size} bytes", hint="lower maxmsgsize or rcvhwm") from error
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        with _Timed(device):
            self.region: MemoryRegion = device.register(
                self.address, size, local_write=received, remote_read=not received
            )

    def close(self) -> None:
        """Deregisters. Memory that is still viewed stays."""
        self.region.close()


def slab_pool(device: DeviceHandle, *, received: bool) -> SlabPool:
    """Registered memory of the host, in blocks. Memory that the device writes to (payloads that were READ) is
    separate from memory that peers may read, so that each has the rights of one use only. `take` raises
    RegistrationError, InternalError."""
    return SlabPool(partial(_Slab, device, received))


class ReadSource(NamedTuple):
    """Where a payload lies while it is announced. `release` is called once, when the peer has READ it.
    copy: our copy, if it was copied; valid until then."""

    address: int
    rkey: int
    release: Callable[[], None]
    copy: memoryview | None = None


class MemoryRegistration:
    """The user's memory, registered while at least one user needs it. Made by `Regions.add`.

    Its object stays exported. `close` does not wait: a pending send keeps the registration until its end.
    """

    def __init__(self, regions: Regions, held: Any, address: int, length: int, region: MemoryRegion) -> None:
        self.address = address
        self.length = length
        self.region = region
        self.uses = 1
        self._regions = regions
        self._held = held

    def _end(self) -> None:
        self.region.close()
        self._held = None

    def remote(self, address: int) -> int:
        """The address of this part in the peer's work requests: a dma-buf has its own addresses."""
        return self.region.address + address - self.address

    def release(self) -> None:
        """Ends one use; the last one deregisters."""
        self._regions.leave(self)


class Handle:
    """One `register` call of the user; closing it twice is fine."""

    def __init__(self, registration: MemoryRegistration) -> None:
        self.address = registration.address
        self.nbytes = registration.length
        self._registration: MemoryRegistration | None = registration

    def close(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.release()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Regions:
    """The user's registered memory. Memory that is registered twice is one region. Thread-safe."""

    def __init__(self, device: DeviceHandle) -> None:
        self._device = device
        # Reentrant: the collector may end a handle inside any statement of this class.
        self._lock = threading.RLock()
        self._exact: dict[tuple[int, int], MemoryRegistration] = {}
        self._starts: list[tuple[int, int]] = []
        self._longest = 0

    def __len__(self) -> int:
        return len(self._exact)

    def add(self, data: Any) -> Handle:
        """Registers the memory of a contiguous object for READs of peers.

        Raises RegistrationError; TypeError or BufferError for an object without flat memory.
        """
        data = RegisteredDeviceMemory.of(data) or data
        held, address, length = _memory_of(data)
        with self._lock:
            found = self._exact.get((address, length))
            if found is not None:
                found.uses += 1
                return Handle(found)
            region = _register(self._device, data, address, length)
            made = MemoryRegistration(self, held, address, length, region)
            self._exact[address, length] = made
            insort(self._starts, (address, length))
            self._longest = max(self._longest, length)
            return Handle(made)

    def find(self, address: int, length: int) -> MemoryRegistration | None:
        """A region that holds all of this memory, with one more use; end it by `release`."""
        with self._lock:
            for index in range(bisect_right(self._starts, (address, 1 << 64)) - 1, -1, -1):
                start, size = self._starts[index]
                if start + self._longest < address + length:
                    return None  # no earlier region reaches this far
                if start + size >= address + length:
                    found = self._exact[start, size]
                    found.uses += 1
                    return found
            return None

    def leave(self, registration: MemoryRegistration) -> None:
        with self._lock:
            registration.uses -= 1
            if registration.uses:
                return
            key = registration.address, registration.length
            if self._exact.pop(key, None) is not None:
                self._starts.remove(key)
            registration._end()

    def close(self) -> None:
        """Deregisters all regions. Idempotent."""
        with self._lock:
            for registration in self._exact.values():
                registration._end()
            self._exact.clear()
            self._starts.clear()


class Sources:
    """Makes payloads readable for peers, by the cheapest way that is safe."""

    def __init__(self, device: DeviceHandle, staging: SlabPool, regions: Regions, copy_into: Any) -> None:
        #: how often memory was registered for one send
        self.registrations = 0
        self._device = device
        self._staging = staging
        self._regions = regions
        self._copy_into = copy_into
        #: of memory that is sent again
        self.cache = RegistrationCache(device, partial(_register, device, None))

    def place(self, data: Any, *, kept: bool) -> ReadSource:
        """data: a flat view, bytes, or RegisteredDeviceMemory. kept: it does not change until the peer has
        READ it: it is immutable, or the caller guarantees it. Raises RegistrationError, InternalError."""
        held, address, length = _memory_of(data)
        device = isinstance(data, RegisteredDeviceMemory)
        if not kept and not device:
            return self._copied(data, length)
        found = self._regions.find(address, length)
        if found is not None:
            return ReadSource(found.remote(address), found.region.rkey, found.release)
        try:
            cached = None if device else self.cache.find(data, address, length)
            if cached is not None:
                return ReadSource(cached[0].address, cached[0].rkey, cached[1])
            region = _register(self._device, data, address, length)
        except RegistrationError as error:
            if error.reason != "read_only":
                raise
            return self._copied(data, length)  # a mapped file: the device may not pin it
        self.registrations += 1
        return ReadSource(region.address, region.rkey, _Once(region, held))

    def _copied(self, data: Any, length: int) -> ReadSource:
        block = self._staging.take(length)
        self._copy_into(block.view, data)
        return ReadSource(
            block.address, block.slab.region.rkey, lambda: self._staging.give_back(block), block.view
        )


class _Once:
    """Ends a registration for one send, and drops its memory."""

    __slots__ = ("_held", "_region")

    def __init__(self, region: MemoryRegion, held: Any) -> None:
        self._region = region
        self._held = held

    def __call__(self) -> None:
        self._region.close()
        self._held = None


class _Timed:
    """Adds the time of the block to the device's registration time."""

    __slots__ = ("_begin", "_device")

    def __init__(self, device: DeviceHandle) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._begin = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._device.registration_ns += time.perf_counter_ns() - self._begin


def _register(device: DeviceHandle, data: Any, address: int, length: int) -> MemoryRegion:
    if isinstance(data, RegisteredDeviceMemory):
        return _register_gpu(device, data.dmabuf, address, length, received=False)
    with _Timed(device):
        return device.register(address, length, local_write=False, remote_read=True)


def register_received(device: DeviceHandle, export: Any, address: int, length: int) -> MemoryRegion:
    """For `GpuReceiving`: memory of a GPU that the device writes to. Raises RegistrationError,
    DeviceError."""
    dmabuf = None if export is None else partial(export, address, length)
    return _register_gpu(device, dmabuf, address, length, received=True)


def _register_gpu(
    device: DeviceHandle, dmabuf: Any, address: int, length: int, *, received: bool
) -> MemoryRegion:
    with _Timed(device):
        if dmabuf is None:
            return device.register(
                address, length, local_write=received, remote_read=not received, device_memory=True
            )
        fd, offset = dmabuf()
        try:  # the region holds the dma-buf by itself
            return device.register_dmabuf(fd, offset, length, local_write=received, remote_read=not received)
        finally:
            os.close(fd)


def _memory_of(data: Any) -> tuple[Any, int, int]:
    """(what keeps it alive, address, bytes)."""
    if isinstance(data, RegisteredDeviceMemory):
        return data.owner, data.address, data.nbytes
    view = flat_view(data)
    return view, address_of(view), view.nbytes
