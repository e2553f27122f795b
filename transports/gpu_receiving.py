"""Memory on GPUs that a transport receives payloads into: blocks of its own, of which tensors are views.

So what arrives needs no memory of the caller, who may end the call in the middle, and no registration for
each message. A payload for `out=` is copied once more, on the GPU. Never run with a network card.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from transfer.transports import cuda, gpu
from transfer.transports.base import Capabilities
from transfer.transports.errors import Broken, Closed, DeviceError, RegistrationError, TransferError
from transfer.transports.reactor import Reactor
from transfer.transports.sizes import LARGE
from transfer.transports.slab_pool import MemoryBlock, SlabPool

#: bytes of free slabs on a GPU that stay registered, and seconds without use for which they do
KEPT: Final = 1 << 30
REST: Final = 30.0
#: seconds for the last work on free blocks, where there is no other memory: also of a call that does not wait
_PATIENCE: Final = 0.1
#: driver errors of a stream that is being captured into a graph: the event is recorded later
_CAPTURE: Final = "CAPTURE"

logger = logging.getLogger("transfer")

#: (what exports a dma-buf, or None; address, bytes) -> the registered region, or None: nothing is registered
Register = Callable[[Any, int, int], Any]


class GpuReceiving:
    """For the connections of one context. can: of the transport. Thread-safe."""

    def __init__(self, can: Capabilities, register: Register) -> None:
        self._can = can
        self._register = register
        self._lock = threading.Lock()
        self._gpus: dict[int, _Gpu] = {}
        self._warned = self._closed = False
        #: gives free memory back after a rest; None: it stays until the context ends
        self.reactor: Reactor | None = None
        self._timer: Any = None

    def room(self, index: int, nbytes: int, host: Any) -> tuple[tuple[Any, MemoryBlock] | None, str]:
        """Returns (a payload on a GPU to be received, and its block), or None: it has to be received on the
        host; and the way with its reason. host: the core's pool, for readers that want it there after all.
        Raises Closed."""
        if nbytes < LARGE:
            return None, ""
        try:
            found = self._gpu(index)
            made = found.room(nbytes, host)
        except DeviceError as error:  # no memory there now, or a GPU that fails
            reason = str(error).partition("\n")[0]
            self._warn(f"{nbytes} bytes for a GPU are received through the host: {reason}")
            return None, f"{gpu.GpuRoute.STAGING.value}: {reason}"
        if self._timer is None and self.reactor is not None and made is not None:
            self._timer = self.reactor.call_later(REST, self._rest)
        return made, f"{found.way.route.value}: {found.way.reason}"

    def _warn(self, text: str) -> None:
        """Once for each context: the metric counts the others."""
        if not self._warned:
            self._warned = True
            logger.warning(text)

    def _gpu(self, index: int) -> _Gpu:
        with self._lock:
            if self._closed:
                raise Closed("the context is closed")
            found = self._gpus.get(index)
            if found is None:
                found = self._gpus[index] = _Gpu(index, self._can, self._register)
            return found

    def arrived(self, payload: Any) -> None:
        """The last byte of a payload was written. Raises Broken: its GPU fails."""
        try:
            self._gpus[payload.context.index].flush()
        except DeviceError as error:
            raise Broken("a GPU that a payload was read into fails") from error

    def _rest(self) -> None:
        """In the reactor, which must not wait: to free memory waits for the GPU."""
        threading.Thread(target=self.drop_free, name="transfer-gpu", daemon=True).start()

    def drop_free(self) -> None:
        """Gives back what was free for REST seconds; looks again later, if more is left."""
        with self._lock:
            found = list(self._gpus.values())
        left = [one.blocks.drop_free(time.monotonic() - REST) for one in found]
        self._timer = None
        if any(left) and self.reactor is not None:
            with suppress(Closed):  # the context ends
                self._timer = self.reactor.call_later(REST, self._rest)

    def close(self) -> None:
        """Ends registrations. Payloads that are in use stay. Idempotent."""
        timer, self._timer, self.reactor = self._timer, None, None
        if timer is not None:
            timer.cancel()
        with self._lock:
            self._closed = True
            for found in self._gpus.values():
                found.blocks.close()


class _Gpu:
    """One GPU. way: how payloads for it are received."""

    def __init__(self, index: int, can: Capabilities, register: Register) -> None:
        from transfer.transports.core.native.cuda import GpuEvent
        from transfer.transports.core.native.gpu_payload import GpuPayload

        driver = cuda.load()
        if driver is None:
            raise DeviceError("no_cuda", "there is no CUDA driver")
        machine = cuda.receiving_machine(driver, index, registers=can.registers_memory)
        self.way = gpu.decide_receiving(gpu.own_memory(index), can, machine)
        self._context = driver.context(index)
        self._flushes = machine.flushes
        self._payload = GpuPayload
        self._nothing = GpuEvent(self._context)  # never recorded, so that no work waits for it
        exporter = driver.export if self.way.route is gpu.GpuRoute.DMABUF else None
        self.blocks = SlabPool(
            partial(_GpuSlab, self._context, partial(register, exporter)), kept=KEPT, begin_wait=_LastUse
        )

    def room(self, nbytes: int, host: Any) -> tuple[Any, MemoryBlock] | None:
        if self.way.route is gpu.GpuRoute.STAGING:
            return None
        try:
            block = self._take(nbytes)
        except RegistrationError as error:
            logger.warning("tensors for a GPU are received through the host: %s", error)
            self.way = gpu.Way(gpu.GpuRoute.STAGING, str(error).partition("\n")[0])
            return None
        released = self.blocks.returning(block)
        made = (self._context, block.address, nbytes, self._nothing, host, released, self.way.route.value)
        try:
            # `map`: a signal handler that raised after the call would drop the payload, and release it.
            [payload] = map(self._payload, *((one,) for one in made))
        except MemoryError:
            released(None)
            raise
        return payload, block

    def _take(self, nbytes: int) -> MemoryBlock:
        limit = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.blocks.take(nbytes)
            except DeviceError:
                # Free blocks of other sizes are in the way, or some whose last work is not done.
                before = self.blocks.registered
                self.blocks.drop_free(math.inf)
                if self.blocks.registered == before and not self.blocks.waits:
                    raise
                if time.monotonic() > limit:
                    raise
                time.sleep(0.001)

    def flush(self) -> None:
        if self._flushes:
            self._context.flush_writes()


class _GpuSlab:
    """See slab_pool.Slab. Raises DeviceError, RegistrationError."""

    def __init__(self, context: Any, register: Callable[[int, int], Any], size: int) -> None:
        self.memory = cuda.GpuMemory(context, size)
        self.address, self.size = self.memory.pointer, size
        self.region = register(self.address, size)

    def close(self) -> None:
        if self.region is not None:
            self.region.close()


class _LastUse:
    """Whether the work that a stream had for a payload, when it was looked at first, is done."""

    def __init__(self, used: tuple[Any, int, Any]) -> None:
        self._used: Any = used
        self._event: Any = None
        self._record()

    def _record(self) -> None:
        from transfer.transports.core.native.cuda import event_after

        try:
            self._event, self._used = event_after(*self._used), None
        except TransferError as error:
            if _CAPTURE not in str(error):  # a GPU that fails, or is the parent's, does no more work
                self._used = None

    def __call__(self) -> bool:
        if self._used is not None:
            self._record()
        try:
            return self._used is None and (self._event is None or bool(self._event.done))
        except TransferError as error:
            return _CAPTURE not in str(error)
