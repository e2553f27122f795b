"""What a connection's peer sees of our GPUs' memory: copies in blocks of our own, or a tensor in its place.

Before the first payload the peer tries to map a small block, which may fail: in another container, for
instance. A block is an allocation that the peer maps once. The GPU copies a payload into it in the order of
the sender's stream, without the host; an event tells the peer when it is there. The peer releases a payload
when its own work on it is done, and the block is used again. A tensor in its place is mapped for one payload
only: until it is released, its memory must neither change nor be freed (gpu_blocks.py has both kinds).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from transfer.transports import cuda, gpu
from transfer.transports.core import address_of
from transfer.transports.core.wire import ON_GPU, REFERENCE
from transfer.transports.countdown import Countdown
from transfer.transports.errors import (
    Broken,
    DeviceError,
    ProtocolError,
    RegistrationError,
    TransferError,
)
from transfer.transports.shm import control_channel
from transfer.transports.shm.control_channel import ControlChannel, ShmControlMessage
from transfer.transports.shm.exported_blocks import SHARE_BITS
from transfer.transports.shm.gpu_blocks import GpuBlock, LentPieces, TriedBlock, lent_block
from transfer.transports.shm.segments import slot_size

#: kinds of messages that say what became of our memory, or what the peer wants
GPU_REPORTS = (
    control_channel.GPU_WANTED,
    control_channel.GPU_RELEASED,
    control_channel.GPU_UNMAPPED,
    control_channel.GPU_ASK,
)
#: bytes of one connection's blocks on all GPUs
LIMIT = 2 << 30
#: blocks of one connection; a peer may announce more (gpu_mappings.py), since it learns later of their end
_MOST = 1 << 15
#: GPUs that a peer may want memory of
MOST_GPUS = 64

_CANNOT_MAP = (
    "tensors on GPU %d go through the host: a peer on this host cannot map its memory (is it in another "
    "container, with an IPC namespace of its own?)"
)

_SEND_ITSELF = "copy=False sends the tensors themselves, which takes no such memory"

_STILL_SEEN = (
    "a peer still uses tensors in this process's memory of a GPU (%d): they end with this process (delete "
    "them there first, or copy them)"
)
_KEPT = "the context ended while a peer still uses this memory of a GPU"
#: blocks of ended contexts that peers may still have mapped
_left: list[GpuBlock] = []

#: copies of ended contexts, as in GpuShares
_unfinished: list[PendingCopy] = []
_ending = threading.Lock()

logger = logging.getLogger("transfer")


class GpuShare(NamedTuple):
    """A payload that the peer sees. lent: keeps the tensor whose own memory it is."""

    block: GpuBlock
    parts: Countdown | None
    nbytes: int
    lent: gpu.OnGpu | None

    def inform(self, error: BaseException | None) -> None:
        """The memory is its owner's again, unless it was lent and is kept."""
        if self.block.kept:
            error = Broken(
                _KEPT, hint="do not free it; let the peer delete its tensor before the context ends"
            )
            error.keeps_memory = True
        if self.parts is not None:
            self.parts.ended(error)


class PendingCopy:
    """What the GPU copies to a block: keeps the tensor. ready: an event behind the copy, once it is there."""

    def __init__(self, payload: gpu.OnGpu) -> None:
        self.payload = payload
        self.ready: Any = None

    @property
    def is_done(self) -> bool:
        try:
            return self.ready is not None and bool(self.ready.done)
        except DeviceError:  # its stream is being captured into a graph, or the GPU fails
            return False


class GpuShares:
    """Of one connection. Used under its owner's lock, who informs the owners of ended shares without it.
    attend: has `go_on` called a little later."""

    def __init__(self, control: ControlChannel, attend: Callable[[], None]) -> None:
        self._control = control
        self._attend = attend
        #: GPUs, by their UUID, that the peer wants memory of
        self.wanted: set[bytes] = set()
        #: whether the peer can map memory of a GPU; the number of the block that it tries
        self._tried: dict[bytes, bool | int] = {}
        #: of blocks
        self._numbers = itertools.count(1)
        self._share = 0
        self._blocks: dict[int, GpuBlock] = {}
        self._idle: list[GpuBlock] = []
        #: the peer was asked to give them up
        self._leaving: set[int] = set()
        self._copying: list[PendingCopy] = []
        self._attended = False
        self._shares: dict[int, GpuShare] = {}
        self._total = 0
        self._used = self._closed = False

    @property
    def seen(self) -> bool:
        """The peer sees payloads, or is about to."""
        return bool(self._shares)

    def __bool__(self) -> bool:
        """The peer sees payloads, or maps blocks."""
        return bool(self._shares or self._blocks)

    def handle(self, message: ShmControlMessage) -> list[tuple[GpuShare, BaseException | None]]:
        """A report of the peer, one of GPU_REPORTS: whom to inform, and of which error. Raises
        ProtocolError."""
        if message.kind == control_channel.GPU_RELEASED:
            return [(share, None) for share in self.end(message.size)]
        if message.kind == control_channel.GPU_UNMAPPED:
            never = Broken("the peer ended before it took this message")
            return [(share, never) for share in self._unmapped(message.number, bool(message.size))]
        if message.kind == control_channel.GPU_ASK:
            block = self._blocks.get(message.number)  # it may have ended
            if isinstance(block, LentPieces):
                block.send_pieces(self._control, message.size, message.slot)
        else:
            self._want(message.size.to_bytes(8, "little") + message.slot.to_bytes(8, "little"))
        return []

    def _want(self, uuid: bytes) -> None:
        if len(self.wanted) >= MOST_GPUS:
            raise ProtocolError("control_channel", f"a peer with more than {MOST_GPUS} GPUs")
        if self._tried.get(uuid) is not False:
            self.wanted.add(uuid)

    def place(self, payload: gpu.OnGpu, lend: bool, parts: Countdown | None, begun: list[int]) -> bytes:
        """The reference to a payload for the peer, which `parts` then counts. lend: of the tensor's own
        memory, where that can be mapped. begun: gets the share's number, which the caller cancels if
        anything is raised. Raises RegistrationError: "gpu", the peer cannot see it, or it is too large;
        "gpu_tried", "gpu_leaving", "gpu_held", "gpu_unread", not yet (`check`, `_no_room`, `_announce`)."""
        self.check(payload.uuid, payload.index)
        driver = cuda.load()
        assert driver is not None
        self._used = True
        _let_go(self._copying)
        number = self._next_share()
        begun.append(number)
        block: GpuBlock | None = None
        try:
            block = self._lent(driver, payload) if lend else None
            offset = payload.pointer - block.pointer if block is not None else 0
            if block is None:
                block = self._copied(driver, payload)
            self._shares[number] = GpuShare(block, parts, payload.nbytes, payload if block.is_lent else None)
        except DeviceError as error:
            raise RegistrationError("gpu", f"a payload cannot be shown to the peer: {error}") from error
        except BaseException:
            if block is not None and number not in self._shares:
                self._put_back(block)
            raise
        if parts is not None:
            parts.left += 1
        return REFERENCE.pack(block.number, ON_GPU | number << 8, offset, payload.nbytes)

    def _next_share(self) -> int:
        """A number that no share has; it travels in 24 bits."""
        number = self._share
        while not number or number in self._shares:
            number = (number + 1) % (1 << SHARE_BITS)
        self._share = (number + 1) % (1 << SHARE_BITS)
        return number

    def check(self, uuid: bytes, index: int) -> None:
        """Raises RegistrationError unless the peer maps memory of this GPU: "gpu_tried" while it tries."""
        driver = cuda.load()
        if driver is None or uuid not in self.wanted:
            raise RegistrationError("gpu", "the peer wants no memory of this GPU")
        if uuid not in self._tried:
            try:
                self._try(driver, uuid, index)
            except DeviceError as error:
                raise RegistrationError("gpu", f"the peer cannot try memory of this GPU: {error}") from error
        if self._tried[uuid] is not True:
            raise RegistrationError("gpu_tried", "the peer still tries to map memory of this GPU")

    def _try(self, driver: cuda.Cuda, uuid: bytes, index: int) -> None:
        block = TriedBlock(driver, next(self._numbers), index)
        self._blocks[block.number] = block
        try:
            self._announce(block)
        except TransferError:  # of an interrupt it is not known: the peer's answer ends it
            self._free(block)
            raise
        self._tried[uuid] = block.number

    def _lent(self, driver: cuda.Cuda, payload: gpu.OnGpu) -> GpuBlock | None:
        """The tensor's own memory. None: the peer cannot map that, only a copy of it."""
        block: GpuBlock | None = None
        if len(self._blocks) >= _MOST:
            return None
        try:
            block = lent_block(driver, next(self._numbers), payload)
            if block is not None:
                self._blocks[block.number] = block
                block.ready.record(payload.stream)
                self._announce(block)
        except BaseException as error:
            if block is not None:
                self._put_back(block)
            if not isinstance(error, DeviceError):
                raise
            logger.debug("memory of a GPU is copied there, since it cannot be lent: %s", error)
            return None
        return block

    def _copied(self, driver: cuda.Cuda, payload: gpu.OnGpu) -> GpuBlock:
        """A block with a copy."""
        block = self._block(driver, payload)
        try:
            block.ready.wait_in(payload.stream)  # a copy of a payload that was never sent
            copy = PendingCopy(payload)
            self._copying.append(copy)
            if not self._attended:
                self._attended = True
                self._attend()
            block.context.copy(block.pointer, payload.pointer, payload.nbytes, payload.stream)
            block.ready.record(payload.stream)
            copy.ready = block.ready
            self._announce(block)
        except BaseException:
            self._put_back(block)
            raise
        return block

    def _block(self, driver: cuda.Cuda, payload: gpu.OnGpu) -> GpuBlock:
        size = slot_size(payload.nbytes)
        for block in self._idle:
            if block.size == size and block.uuid == payload.uuid:
                self._idle.remove(block)
                return block
        if self._total + size > LIMIT:
            self._give_up(self._total + size - LIMIT)
        if self._total + size > LIMIT or len(self._blocks) >= _MOST:
            raise self._no_room(size)
        block = GpuBlock(driver, next(self._numbers), payload.index, size)
        self._total += size
        self._blocks[block.number] = block
        return block

    def _no_room(self, size: int) -> RegistrationError:
        most = f"{LIMIT >> 20} MiB of a GPU that one connection has for copies"
        leaving = sum(self._blocks[number].size for number in self._leaving)
        if len(self._blocks) >= _MOST:
            return RegistrationError("gpu_held", f"the peer has {_MOST} payloads on GPUs at a time")
        if self._total - leaving + size <= LIMIT:
            return RegistrationError("gpu_leaving", f"the peer still unmaps what is free of the {most}")
        wanted = f"{-(-size >> 20)} MiB"
        if size > LIMIT:
            return RegistrationError("gpu", f"{wanted} are more than the {most}", hint=_SEND_ITSELF)
        why = f"no {wanted} are free of the {most}: the peer uses them, or this message does"
        return RegistrationError("gpu_held", why, hint=_SEND_ITSELF)

    def _announce(self, block: GpuBlock) -> None:
        if not (block.announced or block.announce(self._control)):
            raise RegistrationError("gpu_unread", "the peer has not yet read of earlier memory")

    def _put_back(self, block: GpuBlock) -> None:
        """It is used for nothing. The peer may know of it if it is lent."""
        if not block.is_lent:
            self._idle.append(block)
            return
        self._blocks.pop(block.number, None)
        self._control.send(control_channel.GPU_FORGET, block.number)

    # -- the end of payloads

    def cancel(self, number: int) -> None:
        """The peer was not sent this share."""
        share = self._remove(number)
        if share is not None and share.block.is_lent:
            self._put_back(share.block)

    def end(self, number: int) -> list[GpuShare]:
        """The peer does not see it any more, nor has mapped lent memory: whom to inform. It may have ended
        before."""
        share = self._remove(number)
        return [] if share is None else [share]

    def take_back(self, number: int) -> Any:
        """The peer never saw it: a copy in memory of the host. None if the share has ended before."""
        share = self._shares.get(number)
        if share is None:
            return None
        copy = bytearray(share.nbytes)
        share.block.ready.synchronize()
        begin = share.block.pointer if share.lent is None else share.lent.pointer
        share.block.context.copy(address_of(copy), begin, share.nbytes, 0)
        share.block.context.synchronize(0)
        self.cancel(number)
        share.inform(Broken("the message was never sent"))
        return copy

    def _remove(self, number: int) -> GpuShare | None:
        share = self._shares.pop(number, None)
        if share is not None and share.block.is_lent:
            self._blocks.pop(share.block.number, None)
        elif share is not None:
            self._idle.append(share.block)
            if self._closed:
                self._give_up(share.block.size)
        return share

    # -- the end of blocks

    def go_on(self) -> None:
        """Lets go of tensors whose copies are done."""
        _let_go(self._copying)
        self._attended = bool(self._copying)
        if self._attended:
            self._attend()

    def rest(self) -> None:
        """Gives up blocks that were not used since the last call."""
        used, self._used = self._used, False
        if not used:
            self._give_up(self._total)

    def _give_up(self, wanted: int) -> None:
        while wanted > 0 and self._idle:
            block = self._idle.pop(0)
            wanted -= block.size
            if block.announced:
                self._leaving.add(block.number)
                self._control.send(control_channel.GPU_FORGET, block.number)
            else:
                self._free(block)

    def _unmapped(self, number: int, well: bool) -> list[GpuShare]:
        """The peer does not map a block any more, or, not `well`, never could: whom to inform that it never
        took what was there."""
        block = self._blocks.get(number)
        if block is None:
            return []
        if isinstance(block, TriedBlock):
            self._tried[block.uuid] = well
            if not well:
                self.wanted.discard(block.uuid)
                logger.warning(_CANNOT_MAP, block.context.index)
        left = [one for one, share in list(self._shares.items()) if share.block is block]
        shares = [self._shares.pop(one) for one in left]
        if block in self._idle:
            self._idle.remove(block)
        self._leaving.discard(number)
        self._free(block)
        return shares

    def _free(self, block: GpuBlock) -> None:
        if (
            self._blocks.pop(block.number, None) is not None
            and not block.is_lent
            and not isinstance(block, TriedBlock)
        ):
            self._total -= block.size
        block.free()

    def close(self) -> None:
        """Nothing is placed any more: the peer is asked to give up what it does not use."""
        self._closed = True
        self.wanted.clear()
        self._give_up(self._total)

    def peer_gone(self) -> list[GpuShare]:
        """The peer has ended its end, and sees no memory any more: whom to inform."""
        ended = self._end_shares()
        for block in list(self._blocks.values()):
            self._free(block)
        self._idle.clear()
        self._leaving.clear()
        return ended

    def end_all(self) -> list[GpuShare]:
        """The context ends: whom to inform. What the peer may still have mapped, or map, stays until this
        process ends: to free it is undefined."""
        if self._shares:
            logger.warning(_STILL_SEEN, len(self._shares))
        with _ending:
            _unfinished.extend(self._copying)
            self._copying.clear()
            _let_go(_unfinished)
        ended, self._shares = list(self._shares.values()), {}
        for block in list(self._blocks.values()):
            if not block.announced:
                self._free(block)
            block.kept = block.announced and block.is_lent
        _left.extend(self._blocks.values())
        self._blocks.clear()
        self._idle.clear()
        return ended

    def _end_shares(self) -> list[GpuShare]:
        return [share for number in list(self._shares) for share in self.end(number)]


def _let_go(copies: list[PendingCopy]) -> None:
    """Of the tensors whose copies are done."""
    copies[:] = [copy for copy in copies if not copy.is_done]
