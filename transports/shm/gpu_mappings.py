"""The receiver's side of memory of GPUs: the peer's announcements, checked before use (see gpu_shares.py)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from transfer.transports import cuda
from transfer.transports.errors import DeviceError, ProtocolError
from transfer.transports.shm import control_channel
from transfer.transports.shm.control_channel import ControlChannel
from transfer.transports.shm.gpu_shares import own_blocks

#: blocks that one peer may have announced at a time
MOST_BLOCKS = 4096
_UUID, _HANDLE = 16, 64
#: driver errors of a stream that is being captured into a graph: the event is recorded later
_CAPTURE = "CAPTURE"
#: seconds that a finalizer waits for a capture to end
_PATIENCE = 2.0

logger = logging.getLogger("transfer")


class WantedGpus:
    """The GPUs of a context on which its program takes payloads. Kept in Surroundings.shared."""

    NAME = "local.gpus"

    def __init__(self) -> None:
        #: UUID: the number in this process
        self.numbers: dict[bytes, int] = {}

    @classmethod
    def of(cls, shared: dict[str, Any]) -> WantedGpus:
        found = shared.get(cls.NAME) or shared.setdefault(cls.NAME, cls())
        assert isinstance(found, cls)
        return found

    def close(self) -> None:
        self.numbers.clear()


class MappedGpuBlock:
    """An allocation of the peer, mapped here when the first payload in it is fetched."""

    def __init__(self, size: int, lent: bool, handles: bytes) -> None:
        self.size, self.lent = size, lent
        self._handles, self._mapped = handles, False
        self.uuid, self.handle = handles[:_UUID], handles[_UUID : _UUID + _HANDLE]
        self.event_handle = handles[_UUID + _HANDLE :]
        self.context: Any = None
        self.pointer = 0
        self.ready: Any = None
        self._event_after: Any = None
        #: shares that are in use
        self.borrowed: set[int] = set()
        self.leaving = False

    def map(self, driver: cuda.Cuda, index: int) -> None:
        """Raises DeviceError, ProtocolError."""
        from transfer.transports.core.native.cuda import GpuEvent, event_after

        self._event_after = event_after  # a finalizer at the interpreter's end can import nothing
        own = own_blocks.get(self._handles)
        if own is not None:  # the peer is in this process
            if self.size > own.size:
                raise ProtocolError("reference", "memory of a GPU is smaller than its announcement")
            self.context, self.pointer, self.ready, self._mapped = own.context, own.pointer, own.ready, False
            return
        context = driver.context(index)
        pointer = context.map(self.handle)
        try:
            if driver.range_of(pointer)[1] < self.size:
                raise ProtocolError("reference", "memory of a GPU is smaller than its announcement")
            self.ready = GpuEvent(context, handle=self.event_handle)
        except BaseException:
            context.unmap(pointer)
            raise
        self.context, self.pointer, self._mapped = context, pointer, True

    def recorded(self, used: tuple[Any, int, Any]) -> Any:
        """An event of the moment when the last use of a payload is done. Raises DeviceError."""
        return self._event_after(*used)

    def unmap(self) -> None:
        """Idempotent."""
        pointer, self.pointer, self.ready = self.pointer, 0, None
        if pointer and self._mapped:
            self.context.unmap(pointer)


class GpuMappings:
    """Of one connection. Used under its owner's lock, except for `ended`.

    attend: has `go_on` called at once, or a little later; may be called in any statement of any thread.
    """

    def __init__(self, control: ControlChannel, pool: Any, attend: Callable[[bool], None]) -> None:
        self._control = control
        self._pool = pool
        self._attend = attend
        #: the GPUs that this side wants memory of, by UUID: their numbers here
        self.wanted: dict[bytes, int] = {}
        self.blocks: dict[int, MappedGpuBlock] = {}
        #: (block, share, the last use) of payloads that were deleted
        self._ended: deque[tuple[int, int, Any]] = deque()
        #: (event, block, share, what keeps the stream): reported to the peer when the event is done
        self._working: list[tuple[Any, int, int, Any]] = []
        self._last: Callable[[], None] | None = None
        self._finishing = threading.Lock()
        self._pid = os.getpid()

    def __bool__(self) -> bool:
        """This side sees payloads, or has to report their end."""
        return bool(self._ended or self._working or any(one.borrowed for one in self.blocks.values()))

    def want(self, uuid: bytes, index: int) -> None:
        """Tells the peer that payloads may stay on this GPU. Twice is fine."""
        if uuid not in self.wanted:
            self.wanted[uuid] = index
            words = int.from_bytes(uuid[:8], "little"), int.from_bytes(uuid[8:], "little")
            self._control.send(control_channel.GPU_WANTED, 0, *words)

    def announced(self, number: int, size: int, how: int, handles: bytes) -> None:
        """A block of the peer. Raises ProtocolError."""
        if number in self.blocks or len(self.blocks) >= MOST_BLOCKS:
            raise ProtocolError("control_channel", f"announcement of GPU memory {number}, twice or too many")
        if handles[:_UUID] not in self.wanted:
            raise ProtocolError("control_channel", "memory of a GPU that was not asked for")
        block = MappedGpuBlock(size, how == control_channel.LENT, handles)
        if how == control_channel.TRY:
            self._control.send(control_channel.GPU_UNMAPPED, number, self._tried(block))
        else:
            self.blocks[number] = block

    def _tried(self, block: MappedGpuBlock) -> bool:
        driver = cuda.load()
        try:
            if driver is not None:
                block.map(driver, self.wanted[block.uuid])
                block.unmap()
                return True
        except (DeviceError, ProtocolError) as error:
            logger.warning("memory of a GPU of another process cannot be mapped: %s", error)
        return False

    def fetch(self, number: int, share: int, offset: int, size: int) -> Any:
        """The payload, a GpuPayload. Raises ProtocolError, and DeviceError if it cannot be mapped now: its
        message stays unread."""
        from transfer.transports.core.native.gpu_payload import GpuPayload

        block = self.blocks.get(number)
        if block is None or not 0 < size <= block.size - offset:
            raise ProtocolError("reference", f"{size} bytes at {offset} are not of a block of a GPU")
        if share in block.borrowed:
            raise ProtocolError("reference", "a payload on a GPU that is still in use here")
        driver = cuda.load()
        if driver is None:
            raise DeviceError("no_cuda", "there is no CUDA driver")
        if not block.pointer:
            block.map(driver, self.wanted[block.uuid])
        try:
            block.borrowed.add(share)
            made = (block.context, block.pointer + offset, size, block.ready, self._pool)
            ended = partial(self.ended, number, share)
            # `map`: a signal handler that raised after the call would drop the payload, and release it.
            [payload] = map(GpuPayload, *((one,) for one in (*made, ended)))
        except BaseException:
            block.borrowed.discard(share)
            raise
        return payload

    def ended(self, number: int, share: int, used: Any) -> None:
        """A payload is deleted: in any statement of any thread."""
        if self._pid != os.getpid():
            return
        self._ended.append((number, share, used))
        if self._last is None:
            self._attend(True)
        else:
            self._finish()

    def go_on(self) -> None:
        """Reports the payloads whose work is done to the peer."""
        while self._ended:
            number, share, used = self._ended[0]
            try:
                event = None if used is None else self.blocks[number].recorded(used)
            except DeviceError as error:
                if _CAPTURE in str(error):
                    break
                event = None  # a GPU that fails does no more work
            self._ended.popleft()
            self._working.append((event, number, share, used))
        for one in list(self._working):
            if self._reported(*one):
                self._working.remove(one)
        if (self._working or self._ended) and self._last is None:
            self._attend(False)

    def _reported(self, event: Any, number: int, share: int, used: Any) -> bool:
        try:
            if event is not None and not event.done:
                return False
        except DeviceError as error:
            if _CAPTURE in str(error):
                return False
        block = self.blocks[number]
        block.borrowed.discard(share)
        self._unmap_unused(number, block)
        self._control.send(control_channel.GPU_RELEASED, number, share)
        return True

    def forget(self, number: int) -> None:
        """The peer gives up a block."""
        block = self.blocks.get(number)
        if block is not None:
            block.leaving = True
            self._unmap_unused(number, block)

    def _unmap_unused(self, number: int, block: MappedGpuBlock) -> None:
        """Before a payload is reported as free: its memory may end then."""
        if not block.borrowed and (block.lent or block.leaving):
            del self.blocks[number]
            block.unmap()
            if not block.lent:
                self._control.send(control_channel.GPU_UNMAPPED, number, True)

    def finish(self, last: Callable[[], None]) -> None:
        """There is no reactor any more: waits for the work on deleted payloads, here and at the end of the
        others. last: called when there are none."""
        self._last = last
        self._finish()

    def _finish(self) -> None:
        limit = time.monotonic() + _PATIENCE
        while self._ended or self._working:
            # If another thread is here, it checks again afterwards.
            if not self._finishing.acquire(blocking=False):
                return
            try:
                for event, *_ in list(self._working):
                    if event is not None:
                        with suppress(DeviceError):
                            event.synchronize()
                self.go_on()
            finally:
                self._finishing.release()
            if self._ended and time.monotonic() > limit:  # its stream is being captured into a graph
                return
        if not self and self._last is not None:
            self.close()
            self._last()

    def close(self) -> None:
        """The connection has ended: only what is in use stays mapped, and the peer learns what never was."""
        for number, block in list(self.blocks.items()):
            if block.lent and not block.borrowed:
                self._control.send(control_channel.GPU_UNMAPPED, number, True)
            self.forget(number)
