"""The CUDA driver, by the compiled core: what it says of memory, its dma-bufs, and the contexts of GPUs.

`load` makes no context: that begins with `context`. Attributes, contexts and exports were tried on a GPU by
NVIDIA's own binding; this one ran on the tests' driver only. Registering with a network card never ran.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from transfer.transports.errors import DeviceError, TransferError
from transfer.transports.gpu import (
    ALLOWED_HANDLE_TYPES,
    DEVICE_ORDINAL,
    DMA_BUF_SUPPORTED,
    FLUSH_WRITES_OPTIONS,
    IS_LEGACY_IPC_CAPABLE,
    MEMPOOL_HANDLE,
    RANGE_BEGIN,
    RANGE_SIZE,
    WRITES_ORDERING,
    Machine,
    dmabuf_missing,
    peermem_missing,
    writes_of_cards,
)

logger = logging.getLogger("transfer")

_MODULES: Final = Path("/proc/modules")


class Cuda:
    """driver: the core's `libcuda`. contexts: makes the context of a GPU by its number. Thread-safe."""

    def __init__(self, driver: Any, contexts: Any) -> None:
        self._driver = driver
        #: the context of a GPU, by its number; made by the first use. Raises DeviceError
        self.context = cache(contexts)
        self.uuid: Any = cache(driver.device_uuid)

    def uuids(self) -> frozenset[bytes]:
        """Of all GPUs that this process sees. Raises DeviceError."""
        return frozenset(map(self.uuid, range(self._driver.device_count())))

    def used(self) -> int | None:
        """The number of the GPU that this thread uses, else of the first that this process uses."""
        number: int | None = self._driver.used_gpu()
        return number

    def attribute(self, device: int, number: int) -> int | None:
        """An attribute of a GPU; None: this driver does not know it."""
        value: int | None = self._driver.device_attribute(device, number)
        return value

    def attributes(self, pointer: int) -> Mapping[int, int]:
        """The attributes for `gpu.is_virtual` and `gpu.is_exported_by_pieces`, without those that this driver
        does not know."""
        found = {}
        for number in (IS_LEGACY_IPC_CAPABLE, ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE):
            value = self._driver.pointer_attribute(pointer, number)
            if value is not None:
                found[number] = value
        return found

    def number_of(self, pointer: int) -> int | None:
        """The number of the GPU that has this memory; None: it is no memory of a GPU."""
        number: int | None = self._driver.pointer_attribute(pointer, DEVICE_ORDINAL)
        return number

    def range_of(self, pointer: int) -> tuple[int, int]:
        """(first address, bytes) of the allocation that has this memory; zeros where that is unknown."""
        begin = self._driver.pointer_attribute(pointer, RANGE_BEGIN)
        size = self._driver.pointer_attribute(pointer, RANGE_SIZE)
        return (begin or 0, size or 0)

    def pieces(self, index: int, pointer: int, nbytes: int) -> list[tuple[int, int]]:
        """(first address, bytes) of the pieces that this memory was mapped from. Raises DeviceError."""
        from transfer.transports.core.native.gpu_mapping import piece_at

        context, at, found = self.context(index), pointer, []
        while at < pointer + nbytes:
            begin, size = piece_at(context, at)
            if not begin <= at < begin + size:
                raise DeviceError("cuda", f"the driver names no piece of memory at {at:#x}")
            found.append((begin, size))
            at = begin + size
        return found

    def export(self, pointer: int, nbytes: int) -> tuple[int, int]:
        """(a descriptor of a dma-buf that holds this memory, the memory's offset in it).

        The caller closes the descriptor. The driver exports whole pages of the host only.
        Raises RegistrationError("dmabuf"), DeviceError.
        """
        begin, end = pages(pointer, nbytes)
        descriptor = self.context(self.number_of(pointer) or 0).export_dmabuf(begin, end - begin)
        return int(descriptor), pointer - begin


def pages(pointer: int, nbytes: int, page: int = mmap.PAGESIZE) -> tuple[int, int]:
    """Begin and end of the whole pages that hold this memory. Pure."""
    return pointer // page * page, -(-(pointer + nbytes) // page) * page


def machine(driver: Cuda | None, device: int, *, registers: bool, expandable: bool = False) -> Machine:
    """The facts of this process; if a transport registers memory, of the GPU, too."""
    if not registers:
        return Machine(expandable=expandable)
    if driver is None:
        return Machine(dmabuf="no CUDA driver was found", peermem=_peermem(), expandable=expandable)
    supported = driver.attribute(device, DMA_BUF_SUPPORTED)
    missing = dmabuf_missing(os.uname().release, supported, _registers_dmabufs())
    return Machine(missing, _peermem(), expandable)


def receiving_machine(driver: Cuda, device: int, *, registers: bool) -> Machine:
    """The same, and whether the GPU sees what others write to its memory."""
    ordering, options = (driver.attribute(device, one) for one in (WRITES_ORDERING, FLUSH_WRITES_OPTIONS))
    unseen, flushes = writes_of_cards(ordering, options)
    return replace(machine(driver, device, registers=registers), unseen=unseen, flushes=flushes)


def _registers_dmabufs() -> bool:
    try:
        from transfer.transports.core.native import libibverbs

        return bool(libibverbs.has_dmabuf())
    except (ImportError, TransferError):
        return False


def _peermem() -> str:
    try:
        return peermem_missing(_MODULES.read_text())
    except OSError as error:
        return f"{_MODULES} cannot be read: {error.strerror}"


class GpuMemory:
    """An allocation that is freed with this object, which waits for the GPU's work. Raises DeviceError."""

    pointer: int

    def __init__(self, context: Any, nbytes: int) -> None:
        self.context = context
        # `map`: a signal handler that raised after the call would lose the memory.
        [self.pointer] = map(context.allocate, (max(1, nbytes),))

    def __del__(self) -> None:
        pointer = getattr(self, "pointer", 0)
        if pointer:
            with contextlib.suppress(TransferError):  # a forked child has no GPU
                self.context.free(pointer)


@cache
def load() -> Cuda | None:
    """The driver of this process; None where there is none, or no GPU. The result is cached."""
    try:
        from transfer.transports.core.native import cuda, libcuda  # type: ignore[attr-defined]

        libcuda.version()
    except (ImportError, DeviceError) as error:
        logger.debug("no CUDA driver: %s", error)
        return None
    return Cuda(libcuda, cuda.GpuContext)
