"""What a socket's peers can do with memory of GPUs, and how tensors there were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.transports.base import Capabilities
from transfer.transports.config import cuda_ipc_enabled
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.context import Context

#: options with which a step reads, keeps or multiplies a message
_NOT_PLAIN = ("compression", "resend", "conflate")


def capabilities_of(streams: Sequence[Any], options: Mapping[str, Any]) -> Capabilities:
    """What all peers of a socket support."""
    if not streams or any(options[name] for name in _NOT_PLAIN):
        return Capabilities()
    mapped: list[frozenset[bytes]] = [
        getattr(getattr(s, "carrier", None) or s, "maps_gpus", frozenset()) for s in streams
    ]
    return Capabilities(
        device_memory=all(getattr(s, "takes_device_memory", False) for s in streams),
        registers_memory=all(s.registers_device_memory for s in streams),
        maps_gpus=frozenset.intersection(*mapped),
    )


def want_gpu(context: Context, uuid: bytes, index: int) -> None:
    """Peers on this host may leave payloads on this GPU from now on, unless TRANSFER_CUDA_IPC is off. Twice
    is fine."""
    with undivided():
        from transfer.transports.shm.gpu_mappings import WantedGpus
        from transfer.transports.shm.shm_streams import ShmStreams

    wanted = WantedGpus.of(context.shared).numbers
    if wanted.get(uuid) != index and cuda_ipc_enabled():
        wanted[uuid] = index
        carriers = context.shared.get(ShmStreams.NAME)
        if carriers is not None:
            carriers.want_gpu(uuid, index)


def note_gpu(state: ConnectionState, route: str, reason: str) -> None:
    """How a tensor on a GPU was sent, for `peers()` and the metrics."""
    state.gpu = f"{route}: {reason}"
    state.count(f"gpu:{route}")
