"""What a socket's peers can do with memory of GPUs, and how tensors there were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.patterns.base import SendMode
from transfer.transports.base import Capabilities
from transfer.transports.config import cuda_ipc_enabled
from transfer.transports.forking import undivided
from transfer.transports.gpu import NOT_ASKED, GpuRoute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.context import Context

#: options with which a step reads, keeps or multiplies a message
_NOT_PLAIN = ("compression", "resend", "conflate")


def capabilities_of(streams: Sequence[Any], options: Mapping[str, Any], mode: SendMode) -> Capabilities:
    """What all peers of a socket support, or why none of it can be used."""
    step = next((name for name in _NOT_PLAIN if options[name]), "")
    if step:
        return Capabilities(host_only=f"the option {step} works on memory of the host")
    if mode is SendMode.FANOUT:
        return Capabilities(host_only="what goes to several peers at once is copied through the host")
    if not streams:
        return Capabilities(host_only="no peer is connected yet")
    mapped = [getattr(getattr(s, "carrier", None) or s, "maps_gpus", None) for s in streams]
    maps = frozenset.intersection(*(one or frozenset() for one in mapped))
    why = ""
    if not maps and all(one is not None for one in mapped):
        why = NOT_ASKED
    return Capabilities(
        device_memory=all(getattr(s, "takes_device_memory", False) for s in streams),
        registers_memory=all(s.registers_device_memory for s in streams),
        maps_gpus=maps,
        host_only=why,
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


def note_gpu_received(state: ConnectionState, route: str, stream: Any) -> None:
    """The same of one that arrived, by this stream."""
    why = getattr(stream, "gpu_received", "") or getattr(getattr(stream, "carrier", None), "gpu_received", "")
    if not why.startswith(f"{route}:"):
        left = route == GpuRoute.MAPPED.value
        why = f"{route}: " + ("its sender left it on the GPU" if left else "it came to memory of the host")
    state.gpu_received = why
    state.count(f"gpu_received:{route}")
