"""Memory of a GPU that a peer may map: blocks of our own, and memory of tensors.

| block | memory | the peer maps it by |
|---|---|---|
| TriedBlock | our own, small | a handle of the allocation, to find out whether it can |
| GpuBlock | our own | a handle of the allocation, for many payloads |
| LentAllocation | a tensor's, of cudaMalloc | a handle of the allocation, for one payload |
| LentPieces | a tensor's, mapped piece by piece | descriptors, for which it asks, for one payload |
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, ClassVar

from transfer.transports import cuda, gpu
from transfer.transports.errors import DeviceError
from transfer.transports.shm import control_channel
from transfer.transports.shm.control_channel import ControlChannel

#: the blocks of this process by their handles, which a peer in the same process cannot use
own_blocks: weakref.WeakValueDictionary[bytes, GpuBlock] = weakref.WeakValueDictionary()
#: bytes of the block that a peer tries to map; payloads are larger
_TRIED = 4096

logger = logging.getLogger("transfer")


class GpuBlock:
    """Memory of a GPU, and the event after which its payload is there. Raises DeviceError."""

    how: ClassVar = control_channel.KEPT
    is_lent: ClassVar = False
    _unknown: cuda.GpuMemory | None = None

    def __init__(self, driver: cuda.Cuda, number: int, index: int, nbytes: int) -> None:
        from transfer.transports.core.native.cuda import GpuEvent

        self.number, self.size = number, nbytes
        self.context = driver.context(index)
        self.uuid: bytes = driver.uuid(index)
        self.ready = GpuEvent(self.context, shared=True)
        self.pointer: int = self._memory(nbytes)
        #: the peer has its handle
        self.announced = False
        #: lent memory that a peer may have mapped until this process ends
        self.kept = False

    def _memory(self, nbytes: int) -> int:
        #: freed with this object until the peer may know it: where an interrupt ends its making
        self._unknown = cuda.GpuMemory(self.context, nbytes)
        return self._unknown.pointer

    def _handle(self) -> bytes:
        handle: bytes = self.context.export(self.pointer)
        return handle

    def announce(self, control: ControlChannel) -> bool:
        """Tells the peer its handles. False: the peer has not read earlier messages, or is gone. Raises
        DeviceError."""
        self._keep()
        handles = bytes(self.uuid + self._handle() + self.ready.handle)
        own_blocks[handles] = self
        self.announced = control.announce(
            control_channel.GPU_BLOCK, self.number, self.size, self.how, handles
        )
        return self.announced

    def free(self) -> None:
        """The peer has not mapped it. Idempotent."""
        self._keep()
        pointer, self.pointer = self.pointer, 0
        if pointer:
            self.context.free(pointer)

    def _keep(self) -> None:
        """From now on only `free` frees it: the peer may map it, also when this process ends."""
        unknown, self._unknown = self._unknown, None
        if unknown is not None:
            unknown.pointer = 0


class TriedBlock(GpuBlock):
    """A small one, which the peer maps and unmaps at once."""

    how = control_channel.TRY

    def __init__(self, driver: cuda.Cuda, number: int, index: int) -> None:
        super().__init__(driver, number, index, _TRIED)


class LentAllocation(GpuBlock):
    """The allocation that has a tensor. begin: its first address."""

    how = control_channel.LENT
    is_lent = True

    def __init__(self, driver: cuda.Cuda, number: int, index: int, begin: int, nbytes: int) -> None:
        self._begin = begin
        super().__init__(driver, number, index, nbytes)

    def _memory(self, nbytes: int) -> int:
        return self._begin

    def free(self) -> None:
        """It is the tensor's."""
        self.pointer = 0


class LentPieces(LentAllocation):
    """The pieces that have a tensor. pieces: (first address, bytes) of each."""

    how = control_channel.PIECES

    def __init__(self, driver: cuda.Cuda, number: int, index: int, pieces: list[tuple[int, int]]) -> None:
        self._pieces = pieces
        super().__init__(driver, number, index, pieces[0][0], sum(size for _, size in pieces))

    def _handle(self) -> bytes:
        return bytes(control_channel.HANDLE)

    def send_pieces(self, control: ControlChannel, first: int, most: int) -> None:
        """Answers the peer that asks for `most` pieces from number `first` on; it asks again for those that
        do not come."""
        pieces = self._pieces[first : first + min(most, control_channel.MOST_DESCRIPTORS)]
        exported = None
        while pieces and exported is None:
            exported = self._exported(pieces)
            pieces = (
                pieces[: len(pieces) // 2] if exported is None else pieces
            )  # are there fewer descriptors?
        sizes = b"".join(size.to_bytes(control_channel.LENGTH, "little") for _, size in pieces)
        descriptors = [] if exported is None else exported.descriptors
        control.announce(control_channel.GPU_PIECES, self.number, first, 0, sizes, descriptors)

    def _exported(self, pieces: list[tuple[int, int]]) -> Any:
        from transfer.transports.core.native.gpu_mapping import ExportedPieces

        try:
            return ExportedPieces(self.context, [address for address, _ in pieces])
        except DeviceError as error:
            if len(pieces) == 1:
                logger.warning("memory of a GPU for which a peer asks cannot be exported: %s", error)
            return None


def lent_block(driver: cuda.Cuda, number: int, payload: gpu.OnGpu) -> LentAllocation | None:
    """The tensor's own memory, or None: only a copy of it can be mapped. Raises DeviceError."""
    attributes = driver.attributes(payload.pointer)
    if attributes.get(gpu.IS_LEGACY_IPC_CAPABLE):
        begin, size = driver.range_of(payload.pointer)
        if begin and payload.pointer + payload.nbytes <= begin + size:
            return LentAllocation(driver, number, payload.index, begin, size)
    elif gpu.is_exported_by_pieces(attributes):
        pieces = driver.pieces(payload.index, payload.pointer, payload.nbytes)
        return LentPieces(driver, number, payload.index, pieces)
    return None
