"""Sends a tensor on a GPU: by its pointer or registered with the network card, if every peer's transport
supports that, else through the host.

The ways without the host were never run on a GPU: their tests use stand-ins for device, driver and peers.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transfer import config
from transfer.tensors.export import export_pointer, export_staged
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import RegistrationError

if TYPE_CHECKING:
    from transfer.sockets.tracker import Tracker

logger = logging.getLogger("transfer")

_DIRECT: Final = frozenset({gpu.GpuRoute.POINTER, gpu.GpuRoute.DMABUF, gpu.GpuRoute.PEERMEM})
_MODULES: Final = Path("/proc/modules")
_warned: Final[set[str]] = set()


def send_from_device(
    socket: Any, tensor: Any, topic: bytes | None, flags: int, track: bool, direct: bool
) -> Tracker | None:
    """Sends one tensor on a device. direct: not through the host, where that is possible, and with a tracker.
    Raises as `send_tensor`."""
    route = _direct_route(socket, tensor, flags) if direct else gpu.GpuRoute.STAGING
    if route in _DIRECT:
        bits, header, flat = export_pointer(tensor)
        payload = registrable(flat) if route is gpu.GpuRoute.DMABUF else flat
        try:
            sent: Tracker | None = socket._send_outframes(
                [(bits, 0, topic, header, payload)], flags, track, False
            )
            return sent
        except (TypeError, BufferError, RegistrationError) as error:
            # A peer with another transport has connected, the core does not support device memory, or the
            # card refuses this memory.
            _warn(f"a tensor on a GPU is copied through the host after all: {error}")
    bits, header, buffer = export_staged(tensor)
    # Nobody else has this memory, so it is referenced until it is sent, and never copied again.
    tracker: Tracker | None = socket._send_outframes([(bits, 0, topic, header, buffer)], flags, track, False)
    return tracker if track or direct else None


def _direct_route(socket: Any, tensor: Any, flags: int) -> gpu.GpuRoute:
    asked = getattr(socket, "_tensor_capabilities", None)
    return way_of(tensor, Capabilities() if asked is None else asked(flags)).route


def way_of(tensor: Any, can: Capabilities) -> gpu.Way:
    """Returns the decision of `gpu.decide` on this machine; logs its warning once."""
    memory = gpu.described(tensor)
    if memory is None:
        return gpu.Way(gpu.GpuRoute.STAGING, "nothing is known of its memory")
    driver = cuda.load() if memory.kind == gpu.CUDA else None
    if driver is not None:
        memory = replace(memory, virtual=gpu.is_virtual(driver.attributes(memory.pointer)))
    way = gpu.decide(memory, can, _machine(driver, memory.index) if can.registers_memory else _machine())
    if way.warning:
        _warn(way.warning)
    return way


def _machine(driver: cuda.Cuda | None = None, device: int = 0) -> gpu.Machine:
    """Collects the facts of this process; dma-buf and peermem with the driver of the tensor's device."""
    expandable = gpu.expandable_segments(config.torch_allocator())
    if driver is None:
        return gpu.Machine(dmabuf="no CUDA driver was found", peermem=_peermem(), expandable=expandable)
    release = os.uname().release
    missing = gpu.dmabuf_missing(release, driver.supports_dmabuf(device), registers=True)
    return gpu.Machine(dmabuf=missing, peermem=_peermem(), expandable=expandable)


def registrable(flat: Any) -> gpu.Exportable:
    """Returns flat device memory that can be exported as a dma-buf. Only if `decide` allows it."""
    driver = cuda.load()
    assert driver is not None
    pointer = int(flat.__cuda_array_interface__["data"][0])
    return gpu.Exportable(flat, partial(driver.export, pointer, int(flat.nbytes)))


def _warn(text: str) -> None:
    """Logs a warning, once for each text."""
    if text not in _warned:
        _warned.add(text)
        logger.warning(text)


def _peermem() -> str:
    try:
        return gpu.peermem_missing(_MODULES.read_text())
    except OSError as error:
        return f"{_MODULES} cannot be read: {error.strerror}"
