"""Sends a tensor on a GPU: in memory that peers on this host map, by its pointer, or registered with the
network card, if every peer supports that, else through the host.

The ways without the host never ran on a GPU: their tests use stand-ins for driver and peers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transfer import config
from transfer.tensors.export import (
    Exported,
    begun,
    device_of,
    export,
    export_flat,
    on_device,
    settled,
    staged,
)
from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import DeviceError, RegistrationError
from transfer.transports.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from transfer.sockets.tracker import Tracker

logger = logging.getLogger("transfer")

_DIRECT: Final = frozenset({gpu.GpuRoute.POINTER, gpu.GpuRoute.DMABUF, gpu.GpuRoute.PEERMEM})
_MODULES: Final = Path("/proc/modules")
_warned: Final[set[str]] = set()


def send_from_device(
    socket: Any, tensor: Any, topic: bytes | None, flags: int, track: bool, direct: bool
) -> Tracker | None:
    """Sends one tensor on a device. direct: its own memory, where that is possible, and with a tracker.
    Raises as `send_tensor`."""
    exported = export_flat(tensor)
    route = _direct_route(socket, exported[2], flags)
    if route is gpu.GpuRoute.MAPPED or (direct and route in _DIRECT):
        way = _on_gpu if route is gpu.GpuRoute.MAPPED else settled
        bits, header, payload = way(tensor, exported)
        if route is gpu.GpuRoute.DMABUF:
            payload = registrable(payload)
        try:
            sent: Tracker | None = socket._send_outframes(
                [(bits, 0, topic, header, payload)], flags, track, not direct
            )
            return sent
        except (TypeError, BufferError, RegistrationError) as error:
            # A peer with another transport has connected, the core does not support device memory, or the
            # card refuses this memory.
            _warn_unless_tried(f"a tensor on a GPU is copied through the host after all: {error}", error)
    bits, header, buffer = begun(tensor, exported)
    # Nobody else has this memory, so it is referenced until it is sent, and never copied again.
    frames = [(bits, 0, topic, header, buffer)]
    tracker = _send_while_filled(lambda: socket._send_outframes(frames, flags, track, False), [buffer])
    return tracker if track or direct else None


def _send_while_filled(send: Callable[[], Tracker | None], buffers: list[Any]) -> Tracker | None:
    """Sends, and waits until the copies from the GPU are done, from which connections write meanwhile."""
    try:
        return send()
    finally:
        # A signal handler that raised must not leave a message half filled.
        error = uninterrupted(partial(_fill, buffers), None)
        if error is not None:
            raise error


def _fill(buffers: list[Any]) -> Exception | None:
    """Waits for all of them. The first error is returned, not raised."""
    found: Exception | None = None
    for buffer in buffers:
        try:
            if hasattr(buffer, "complete"):
                buffer.complete()
        except (DeviceError, RuntimeError) as error:  # the libraries' are of the last kind
            found = found or error
    return found


def _direct_route(socket: Any, flat: Any, flags: int) -> gpu.GpuRoute:
    asked = getattr(socket, "_tensor_capabilities", None)
    return way_of(flat, Capabilities() if asked is None else asked(flags)).route


def send_bundle(
    socket: Any,
    frames_with: Callable[..., list[Any]],
    tensors: Any,
    flags: int,
    track: bool,
    copy: bool | None,
) -> Tracker | None:
    """Sends several tensors as one message. frames_with: makes its frames, given an exporter or not."""
    sent: Tracker | None
    if not (_is_gpu_used() and isinstance(tensors, Mapping) and any(map(on_device, tensors.values()))):
        sent = socket._send_outframes(frames_with(), flags, track, copy)
        return sent
    asked = getattr(socket, "_tensor_capabilities", None)
    can = Capabilities(maps_gpus=frozenset() if asked is None else asked(flags).maps_gpus)
    if can.maps_gpus:
        try:
            sent = socket._send_outframes(frames_with(partial(_export_mapped, can)), flags, track, copy)
            return sent
        except (TypeError, BufferError, RegistrationError) as error:
            _warn_unless_tried(f"tensors on a GPU are copied through the host after all: {error}", error)
    begins = _Begins()
    frames = frames_with(begins)
    # Nobody else has the copies.
    held = False if copy is None and all(map(on_device, tensors.values())) else copy
    sent = _send_while_filled(lambda: socket._send_outframes(frames, flags, track, held), begins.buffers)
    return sent if track or copy is False else None


def _is_gpu_used() -> bool:
    """Whether this process may have a tensor on a GPU: known without a look at each."""
    torch = sys.modules.get("torch")
    own = "transfer.transports.core.native.cuda" in sys.modules
    return own or "cupy" in sys.modules or (torch is not None and torch.cuda.is_initialized())


def _export_mapped(can: Capabilities, tensor: Any) -> Exported:
    """As `export`; on its GPU where peers map it."""
    if not on_device(tensor):
        return export(tensor)
    exported = export_flat(tensor)
    way = _on_gpu if way_of(exported[2], can).route is gpu.GpuRoute.MAPPED else staged
    return way(tensor, exported)


class _Begins:
    """As `export`, with copies that only begin: `buffers` are the tensors' that are on a GPU."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []

    def __call__(self, tensor: Any) -> Exported:
        if not on_device(tensor):
            return export(tensor)
        exported = begun(tensor, export_flat(tensor))
        self.buffers.append(exported[2])
        return exported


def _on_gpu(tensor: Any, exported: Exported) -> Exported:
    """For peers that map it, in the order of the tensor's current stream."""
    bits, header, flat = exported
    driver, memory = cuda.load(), gpu.described(flat)
    assert driver is not None
    assert memory is not None
    index = driver.device_of(memory.pointer) or 0
    where = device_of(tensor, flat)
    current, stream = where.current()
    copied = partial(where.copied, flat, current)
    memory = replace(memory, index=index)
    return bits, header, gpu.OnGpu(flat, memory, driver.uuid(index), stream, copied)


def way_of(tensor: Any, can: Capabilities) -> gpu.Way:
    """Returns the decision of `gpu.decide` on this machine; logs its warning once."""
    try:
        memory = gpu.described(tensor)
    except (AttributeError, KeyError, TypeError, ValueError):  # what is wrong says its export
        memory = None
    if memory is None:
        return gpu.Way(gpu.GpuRoute.STAGING, "nothing is known of its memory")
    driver = cuda.load() if memory.kind == gpu.CUDA else None
    if driver is not None and can.maps_gpus:
        index = driver.device_of(memory.pointer)
        memory = replace(memory, uuid=b"" if index is None else driver.uuid(index))
    if driver is not None and (can.device_memory or can.registers_memory):
        memory = replace(memory, virtual=gpu.is_virtual(driver.attributes(memory.pointer)))
    way = gpu.decide(memory, can, _machine(driver, memory.index, can.registers_memory))
    if way.warning:
        _warn(way.warning)
    return way


def _machine(driver: cuda.Cuda | None, device: int, registers: bool) -> gpu.Machine:
    """Collects the facts of this process; if a transport registers memory, of the tensor's device too."""
    expandable = gpu.expandable_segments(config.torch_allocator())
    if not registers:
        return gpu.Machine(expandable=expandable)
    if driver is None:
        return gpu.Machine(dmabuf="no CUDA driver was found", peermem=_peermem(), expandable=expandable)
    missing = gpu.dmabuf_missing(os.uname().release, driver.supports_dmabuf(device), registers=True)
    return gpu.Machine(dmabuf=missing, peermem=_peermem(), expandable=expandable)


def registrable(flat: Any) -> gpu.Exportable:
    """Returns flat device memory that can be exported as a dma-buf. Only if `decide` allows it."""
    driver = cuda.load()
    assert driver is not None
    pointer = int(flat.__cuda_array_interface__["data"][0])
    return gpu.Exportable(flat, partial(driver.export, pointer, int(flat.nbytes)))


def _warn_unless_tried(text: str, error: Exception) -> None:
    if getattr(error, "reason", "") != "gpu_tried":  # the first payloads of a connection are no news
        _warn(text)


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
