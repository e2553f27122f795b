"""Memory that is registered once and sent many times: the result of `Context.register`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.tensors import gpu_sending
from transfer.tensors.export import export, export_pointer
from transfer.transports import gpu, probe
from transfer.transports.base import Capabilities
from transfer.transports.core.buffers import flat_view
from transfer.transports.errors import UsageError
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from transfer.sockets.context import Context
    from transfer.transports.rdma.domain import Wish


class Registration:
    """The registration of a tensor's memory with the network card, until `close`. Thread-safe.

    It holds the tensor. Close it or use `with`; the context closes it, too. Messages in flight keep their
    memory registered until the peer has received them.
    """

    def __init__(self, context: Context, tensor: Any, memory: Any, reason: str) -> None:
        self.nbytes = 0 if memory is None else int(memory.nbytes)
        self._context = context
        self._held: Any = (tensor, memory)
        self._reason = reason
        self._wish: Wish | None = None
        self.closed = False

    @property
    def transports(self) -> tuple[str, ...]:
        """Transports that send this memory without registering it for each send, at this moment."""
        wish = self._wish
        return ("rdma",) if wish is not None and wish.handle is not None else ()

    @property
    def reason(self) -> str:
        """Why no transport has registered it, as text; "" if one has."""
        wish = self._wish
        if self.closed:
            return "it is closed"
        if wish is None:
            return self._reason
        if wish.error is not None:
            return f"rdma: {wish.error}"
        return "" if wish.handle is not None else "rdma: the first connection by rdma opens the device"

    def close(self) -> None:
        """Ends the registration. Idempotent; any thread."""
        self.closed = True
        wish, self._wish = self._wish, None
        self._held = None
        self._context._transfer_registered.discard(self)
        if wish is not None:
            wish.close()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Registration of {self.nbytes} bytes: {', '.join(self.transports) or self.reason}>"


def register(context: Context, tensor: Any) -> Registration:
    """See `Context.register`."""
    device = gpu.described(tensor)
    if device is not None and not device.is_host_readable:
        return _register_device(context, tensor)
    memory, again = flat_view(export(tensor)[2]), flat_view(export(tensor)[2])
    address_of = context.core.address_of
    if address_of(memory) != address_of(again):
        raise UsageError("a tensor with gaps is copied when it is sent", hint="register a contiguous one")
    seen = probe.probe("rdma")
    if not memory.nbytes or not seen.usable:
        reason = f"rdma: {seen.reason}" if memory.nbytes else "it has no bytes"
        return Registration(context, tensor, memory, f"no transport here needs it; {reason}")
    return _wished(context, tensor, memory)


def _register_device(context: Context, tensor: Any) -> Registration:
    """Registers a tensor on a GPU, as a dma-buf or by peermem. Not tested on hardware."""
    found = gpu_sending.way_of(tensor, Capabilities(registers_memory=True))
    if found.route not in (gpu.GpuRoute.DMABUF, gpu.GpuRoute.PEERMEM):
        return Registration(context, tensor, None, f"it is copied through the host: {found.reason}")
    seen = probe.probe("rdma")
    if not seen.usable:
        return Registration(context, tensor, None, f"no transport here needs it; rdma: {seen.reason}")
    flat = export_pointer(tensor)[2]
    memory, again = gpu.described(tensor), gpu.described(flat)
    if memory is None or again is None or memory.pointer != again.pointer:
        raise UsageError("a tensor with gaps is copied when it is sent", hint="register a contiguous one")
    return _wished(
        context, tensor, gpu_sending.registrable(flat) if found.route is gpu.GpuRoute.DMABUF else flat
    )


def _wished(context: Context, tensor: Any, memory: Any) -> Registration:
    with undivided():
        from transfer.transports.rdma.upgrade import domains_in

    made = Registration(context, tensor, memory, "")
    made._wish = domains_in(context.shared, context.core.copy_into).wish(memory)
    return made
