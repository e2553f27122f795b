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
from transfer.transports.errors import Broken, DeviceError, ProtocolError
from transfer.transports.shm import control_channel
from transfer.transports.shm.control_channel import UUID, ControlChannel, ShmControlMessage
from transfer.transports.shm.mapped_gpu_blocks import MappedGpuBlock, MappedInPieces

#: blocks that one peer may have announced at a time
MOST_BLOCKS = 1 << 16
#: seconds until pieces are asked for again, for a sender to answer, and between two looks
_AGAIN, _ANSWER, _LOOK = 0.1, 0.5, 0.002
_HINT = "the message stays unread: receive again"
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


class GpuMappings:
    """Of one connection. Used under its owner's lock, except for `ended` and `fetch`.

    attend: has `go_on` called at once, or a little later; may be called in any statement of any thread.
    await_control: handles what the peer says within so many seconds; raises if the connection fails.
    """

    def __init__(
        self,
        control: ControlChannel,
        pool: Any,
        lock: Any,
        attend: Callable[[bool], None],
        await_control: Callable[[float], None],
    ) -> None:
        self._control = control
        self._pool = pool
        self._lock = lock
        self._attend = attend
        self._await_control = await_control
        self._closed = False
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

    def handle(self, message: ShmControlMessage) -> None:
        """The peer announces memory, or gives it up. Raises ProtocolError."""
        if message.kind == control_channel.GPU_BLOCK:
            self._announced(message.number, message.size, message.slot, message.handles)
        elif message.kind == control_channel.GPU_PIECES:
            block, driver = self.blocks.get(message.number), cuda.load()
            if isinstance(block, MappedInPieces) and driver is not None:
                block.add(driver, self.wanted[block.uuid], message)
                if block.lacks and block.failure is None:
                    self._ask(message.number, block)
        else:
            self._forget(message.number)

    def _announced(self, number: int, size: int, how: int, handles: bytes) -> None:
        if number in self.blocks or len(self.blocks) >= MOST_BLOCKS:
            raise ProtocolError("control_channel", f"announcement of GPU memory {number}, twice or too many")
        if handles[:UUID] not in self.wanted:
            raise ProtocolError("control_channel", "memory of a GPU that was not asked for")
        if how == control_channel.PIECES:
            block: MappedGpuBlock = MappedInPieces(size, handles)
        else:
            block = MappedGpuBlock(size, handles, lent=how == control_channel.LENT)
        if self._closed and block.is_lent:
            self._control.send(control_channel.GPU_UNMAPPED, number, True)  # it will never be taken
        elif how == control_channel.TRY:
            self._control.send(control_channel.GPU_UNMAPPED, number, self._tried(block))
        elif not self._closed:
            self.blocks[number] = block
            if isinstance(block, MappedInPieces) and block.lacks:
                self._ask(number, block)  # they are here by the time that the message is read

    def _ask(self, number: int, block: MappedInPieces) -> None:
        block.asked, block.failure = time.monotonic(), None
        self._control.send(control_channel.GPU_ASK, number, block.count, block.most)

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
        """The payload, a GpuPayload. Without the owner's lock. Raises ProtocolError, Broken after `close`,
        and DeviceError or OutOfDescriptors if it cannot be mapped now: its message stays unread."""
        from transfer.transports.core.native.gpu_payload import GpuPayload

        driver = cuda.load()
        if driver is None:
            raise DeviceError("no_cuda", "there is no CUDA driver")
        taken: list[MappedGpuBlock] = []
        try:
            block = self._usable(number, share, offset, size)
            if isinstance(block, MappedInPieces):
                self._bring(number, block)
            with self._lock:
                if self.blocks.get(number) is not block:
                    raise Broken("this end closed the stream")
                if not block.pointer:
                    block.map(driver, self.wanted[block.uuid])
                taken.append(block)
                block.borrowed.add(share)
            made = (block.context, block.pointer + offset, size, block.ready, self._pool)
            ended = partial(self.ended, number, share)
            # `map`: a signal handler that raised after the call would drop the payload, and release it. Nor
            # may it be made under the lock, behind whose end one may run.
            [payload] = map(GpuPayload, *((one,) for one in (*made, ended)))
        except BaseException as error:
            for block in taken:
                block.borrowed.discard(share)
            if isinstance(error, DeviceError):
                self._await_control(_LOOK)  # raises Broken where its sender has ended: it will never come
            raise
        return payload

    def _usable(self, number: int, share: int, offset: int, size: int) -> MappedGpuBlock:
        with self._lock:
            block = self.blocks.get(number)
            if block is None and self._closed:
                raise Broken("this end closed the stream")
            if block is None or not 0 < size <= block.size - offset:
                raise ProtocolError("reference", f"{size} bytes at {offset} are not of a block of a GPU")
            if share in block.borrowed:
                raise ProtocolError("reference", "a payload on a GPU that is still in use here")
            return block

    def _bring(self, number: int, block: MappedInPieces) -> None:
        """Waits for the pieces that are not here. Raises what keeps them away."""
        last, limit = -1, 0.0
        while block.lacks and not (block.pointer or self._closed):
            if block.count != last:
                last, limit = block.count, time.monotonic() + _ANSWER
            if block.failure is not None or time.monotonic() > block.asked + _AGAIN:
                self._ask(number, block)
            self._await_control(_LOOK)
            if block.failure is not None:
                raise block.failure
            if block.count == last and block.lacks and time.monotonic() > limit:
                raise DeviceError("cuda", "the sender of memory of a GPU does not answer", hint=_HINT)

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
        self._working = [one for one in self._working if not self._reported(*one)]
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
        if self._unmap_unused(number, block):
            self._control.send(control_channel.GPU_RELEASED, number, share)
        return True

    def _forget(self, number: int) -> bool:
        """The peer gives up a block. As `_unmap_unused`."""
        block = self.blocks.get(number)
        if block is None:
            return True
        block.leaving = True
        return self._unmap_unused(number, block)

    def _unmap_unused(self, number: int, block: MappedGpuBlock) -> bool:
        """Before a payload is reported as free: its memory may end then. False: it stays mapped."""
        if block.borrowed or not (block.is_lent or block.leaving):
            return True
        del self.blocks[number]
        try:
            block.unmap()
        except DeviceError as error:
            logger.warning("memory of a GPU of another process stays mapped: %s", error)
            return False
        if not block.is_lent:
            self._control.send(control_channel.GPU_UNMAPPED, number, True)
        return True

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
        self._closed = True
        for number, block in list(self.blocks.items()):
            was_never_taken = block.is_lent and not block.borrowed
            if self._forget(number) and was_never_taken:
                self._control.send(control_channel.GPU_UNMAPPED, number, True)
