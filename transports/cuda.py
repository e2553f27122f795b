"""The calls of the CUDA driver that register memory with a network card: four of them.

They go by NVIDIA's cuda.bindings (extras `cuda12`, `cuda13`; torch for CUDA brings it), whose calls return a
status and a result. Attributes and exports were tried on a GPU; registering with a card never was.
"""

from __future__ import annotations

import importlib
import logging
import mmap
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from transfer.transports.errors import RegistrationError
from transfer.transports.gpu import DMA_BUF_SUPPORTED, IS_LEGACY_IPC_CAPABLE, MEMPOOL_HANDLE

logger = logging.getLogger("transfer")

#: CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
DMA_BUF: Final = 1


class Cuda:
    """driver: the module `cuda.bindings.driver`. Thread-safe, as the driver is."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def supports_dmabuf(self, device: int) -> int | None:
        """The device's attribute 124; None if the driver does not return it."""
        status, handle = self._driver.cuDeviceGet(device)
        if int(status):
            return None
        attribute = self._driver.CUdevice_attribute(DMA_BUF_SUPPORTED)
        status, value = self._driver.cuDeviceGetAttribute(attribute, handle)
        return None if int(status) else int(value)

    def attributes(self, pointer: int) -> Mapping[int, int]:
        """The attributes for `gpu.is_virtual`, without those that this driver does not know."""
        found = {}
        for number in (IS_LEGACY_IPC_CAPABLE, MEMPOOL_HANDLE):
            status, value = self._driver.cuPointerGetAttribute(
                self._driver.CUpointer_attribute(number), pointer
            )
            if not int(status):
                found[number] = int(value) if value is not None else 0
        return found

    def export(self, pointer: int, nbytes: int) -> tuple[int, int]:
        """(a descriptor of a dma-buf that holds this memory, the memory's offset in it).

        The caller closes the descriptor. The driver exports whole pages of the host only.
        Raises RegistrationError("dmabuf").
        """
        begin, end = pages(pointer, nbytes)
        kind = self._driver.CUmemRangeHandleType(DMA_BUF)
        status, descriptor = self._driver.cuMemGetHandleForAddressRange(begin, end - begin, kind, 0)
        if int(status):
            raise RegistrationError(
                "dmabuf",
                f"the CUDA driver exports no dma-buf of {nbytes} bytes at {pointer:#x}: {status}",
                hint="memory of cudaMalloc can be exported; load nvidia_peermem for the other way",
            )
        return int(descriptor), pointer - begin


def pages(pointer: int, nbytes: int, page: int = mmap.PAGESIZE) -> tuple[int, int]:
    """Begin and end of the whole pages that hold this memory. Pure."""
    return pointer // page * page, -(-(pointer + nbytes) // page) * page


@cache
def load() -> Cuda | None:
    """The driver of this process; None where there is none. The result is cached."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        status = driver.cuInit(0)[0]
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: no libcuda
        logger.debug("no CUDA driver: %s", error)
        return None
    if int(status):
        logger.debug("no CUDA driver: cuInit says %s", status)
        return None
    return Cuda(driver)
