"""A GPU by the CUDA driver's own calls, for arrays that are of neither torch nor CuPy. Never run on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from transfer.tensors.device import Slab, pin_pages
from transfer.tensors.pinned import POOL
from transfer.transports.cuda import GpuMemory
from transfer.transports.errors import TransferError

#: bytes that are not worth pinned memory: the driver has some for them
_PAGEABLE: Final = 1 << 20


class DriverDevice:
    """See `device.GpuDevice`. The current stream is the array's. owner: what keeps that stream."""

    def __init__(self, context: Any, stream: int, owner: Any = None) -> None:
        self._context, self._stream, self._owner = context, stream, owner

    def pinned(self, nbytes: int) -> Slab:
        import numpy

        region = POOL.take(nbytes, partial(pin_pages, self)) if nbytes > _PAGEABLE else None
        if region is not None:
            return self.slab(numpy.frombuffer(region, "u1"))
        return self.slab(numpy.empty(nbytes, "u1"))

    def slab(self, view: Any) -> Slab:
        return Slab(int(view.ctypes.data), view, pooled=True)

    def pin(self, memory: Any) -> Callable[[], object]:
        address = int(memory.ctypes.data)
        self._context.pin(address, memory.nbytes)
        return partial(_unpin, self._context, address)  # which the pool keeps, and no array with it

    def copy_out(self, flat: Any, start: int, slab: Slab, nbytes: int, at: int = 0) -> Any:
        self._context.copy(slab.memory + at, self.address(flat) + start, nbytes, self._stream)
        return self.record()

    def copy_in(self, slab: Slab, flat: Any, start: int, nbytes: int, at: int = 0) -> Any:
        try:
            self._context.copy(self.address(flat) + start, slab.memory + at, nbytes, self._stream)
        finally:  # a signal handler may have raised behind the call
            event = self.record()
            self.hold(slab, event)
        return event

    def hold(self, slab: Slab, event: Any) -> None:
        POOL.hold(slab.view, lambda: bool(event.done))

    def record(self) -> Any:
        from transfer.transports.core.native.cuda import GpuEvent

        event = GpuEvent(self._context)
        event.record(self._stream)
        return event

    def current(self) -> tuple[Any, int]:
        return self._owner, self._stream

    def address(self, flat: Any) -> int:
        return int(flat.memory.pointer)

    def copied(self, flat: Any, stream: Any) -> tuple[Any, int]:
        memory = GpuMemory(self._context, flat.nbytes)
        self._context.copy(memory.pointer, self.address(flat), flat.nbytes, self._stream)
        return memory, memory.pointer


def _unpin(context: Any, address: int) -> None:
    with contextlib.suppress(TransferError):  # a forked child has no GPU
        context.unpin(address)
