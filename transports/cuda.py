"""The CUDA driver, by the compiled core: what it says of memory, its dma-bufs, and the contexts of GPUs.

`load` makes no context: that begins with `context`. Attributes, contexts and exports were tried on a GPU by
NVIDIA's own binding; this one ran on the tests' driver only. Registering with a network card never ran.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Mapping
from functools import cache
from typing import Any

from transfer.transports.errors import DeviceError
from transfer.transports.gpu import (
    DEVICE_ORDINAL,
    DMA_BUF_SUPPORTED,
    IS_LEGACY_IPC_CAPABLE,
    MEMPOOL_HANDLE,
    RANGE_BEGIN,
    RANGE_SIZE,
)

logger = logging.getLogger("transfer")


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

    def supports_dmabuf(self, device: int) -> int | None:
        """The device's attribute 124; None if the driver does not return it."""
        value: int | None = self._driver.device_attribute(device, DMA_BUF_SUPPORTED)
        return value

    def attributes(self, pointer: int) -> Mapping[int, int]:
        """The attributes for `gpu.is_virtual`, without those that this driver does not know."""
        found = {}
        for number in (IS_LEGACY_IPC_CAPABLE, MEMPOOL_HANDLE):
            value = self._driver.pointer_attribute(pointer, number)
            if value is not None:
                found[number] = value
        return found

    def device_of(self, pointer: int) -> int | None:
        """The number of the GPU that has this memory; None: it is no memory of a GPU."""
        number: int | None = self._driver.pointer_attribute(pointer, DEVICE_ORDINAL)
        return number

    def range_of(self, pointer: int) -> tuple[int, int]:
        """(first address, bytes) of the allocation that has this memory; zeros where that is unknown."""
        begin = self._driver.pointer_attribute(pointer, RANGE_BEGIN)
        size = self._driver.pointer_attribute(pointer, RANGE_SIZE)
        return (begin or 0, size or 0)

    def export(self, pointer: int, nbytes: int) -> tuple[int, int]:
        """(a descriptor of a dma-buf that holds this memory, the memory's offset in it).

        The caller closes the descriptor. The driver exports whole pages of the host only.
        Raises RegistrationError("dmabuf"), DeviceError.
        """
        begin, end = pages(pointer, nbytes)
        descriptor = self.context(self.device_of(pointer) or 0).export_dmabuf(begin, end - begin)
        return int(descriptor), pointer - begin


def pages(pointer: int, nbytes: int, page: int = mmap.PAGESIZE) -> tuple[int, int]:
    """Begin and end of the whole pages that hold this memory. Pure."""
    return pointer // page * page, -(-(pointer + nbytes) // page) * page


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
