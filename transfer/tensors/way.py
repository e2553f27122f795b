"""How a tensor on a GPU leaves: by its pointer, where every peer takes that, else through the host.

Never ran on a GPU: tested with stand-ins for the tensor, its device and the peers.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from transfer import config
from transfer.tensors.export import export, export_pointer
from transports import gpu
from transports.base import Capabilities

logger = logging.getLogger("transfer")

_warned: Final[set[str]] = set()


def send_from_device(socket: Any, tensor: Any, topic: bytes | None, flags: int, track: bool) -> Any:
    """Sends one tensor that is on a device, with `copy=False`. Raises what `send_tensor` raises."""
    asked = getattr(socket, "_tensor_capabilities", None)
    can = Capabilities() if asked is None else asked(flags)
    if way_of(tensor, can).route is gpu.Route.POINTER:
        bits, header, flat = export_pointer(tensor)
        try:
            return socket._send_outframes([(bits, 0, topic, header, flat)], flags, track, False)
        except (TypeError, BufferError):
            # A peer by another transport came meanwhile, or the core knows no device memory.
            logger.debug("a tensor is staged after all", exc_info=True)
    bits, header, buffer = export(tensor)
    return socket._send_outframes([(bits, 0, topic, header, buffer)], flags, track, False)


def way_of(tensor: Any, can: Capabilities) -> gpu.Way:
    """What `gpu.decide` says of it on this machine; its warning is logged once."""
    memory = gpu.described(tensor)
    if memory is None:
        return gpu.Way(gpu.Route.STAGING, "nothing is known of its memory")
    way = gpu.decide(memory, can, machine())
    if way.warning and way.warning not in _warned:
        _warned.add(way.warning)
        logger.warning(way.warning)
    return way


def machine() -> gpu.Machine:
    """What this process knows. dma-buf and peermem are not asked for: rdma stages in this release."""
    return gpu.Machine(expandable=gpu.expandable_segments(config.torch_allocator()))
