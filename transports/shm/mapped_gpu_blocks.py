"""Memory of a peer's GPU, mapped here: an allocation by its handle, or pieces by their descriptors."""

from __future__ import annotations

from typing import Any

from transfer.transports import cuda
from transfer.transports.errors import DeviceError, ProtocolError, TransferError
from transfer.transports.shm.control_channel import (
    HANDLE,
    LENGTH,
    MOST_DESCRIPTORS,
    UUID,
    ShmControlMessage,
    out_of_descriptors,
)
from transfer.transports.shm.gpu_blocks import own_blocks

#: of one block
MOST_PIECES = 1 << 16


class MappedGpuBlock:
    """An allocation of the peer, mapped when the first payload in it is fetched. lent: for one payload."""

    def __init__(self, size: int, handles: bytes, lent: bool) -> None:
        self.size, self.is_lent = size, lent
        self._handles = handles
        self.uuid, self.handle = handles[:UUID], handles[UUID : UUID + HANDLE]
        self.event_handle = handles[UUID + HANDLE :]
        self.context: Any = None
        #: what is mapped; None: nothing, or memory of this process
        self._range: Any = None
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
            self.context, self.pointer, self.ready = own.context, own.pointer, own.ready
            return
        context = driver.context(index)
        mapped = self._mapped(driver, context)
        ready = GpuEvent(context, handle=self.event_handle)
        self.context, self.ready = context, ready
        self._range, self.pointer = mapped, mapped.pointer

    def _mapped(self, driver: cuda.Cuda, context: Any) -> Any:
        from transfer.transports.core.native.gpu_mapping import MappedAllocation

        mapped = MappedAllocation(context, self.handle)
        if driver.range_of(mapped.pointer)[1] < self.size:
            raise ProtocolError("reference", "memory of a GPU is smaller than its announcement")
        return mapped

    def recorded(self, used: tuple[Any, int, Any]) -> Any:
        """An event of the moment when the last use of a payload is done. Raises DeviceError."""
        return self._event_after(*used)

    def unmap(self) -> None:
        """Idempotent. Raises DeviceError."""
        mapped, self._range = self._range, None
        self.pointer, self.ready = 0, None
        if mapped is not None:
            mapped.close()


class MappedInPieces(MappedGpuBlock):
    """Pieces behind each other, imported as they come. lacks: whether more of them have to be asked for."""

    def __init__(self, size: int, handles: bytes) -> None:
        super().__init__(size, handles, lent=True)
        self._imported: list[Any] = []
        self._nbytes = 0
        #: when they were asked for, of time.monotonic()
        self.asked = 0.0
        #: why the last ones that were asked for did not come
        self.failure: TransferError | None = None
        #: how many to ask for
        self.most = MOST_DESCRIPTORS

    @property
    def count(self) -> int:
        """Of the pieces that are here."""
        return len(self._imported)

    @property
    def lacks(self) -> bool:
        return self._nbytes < self.size and self._handles not in own_blocks

    def add(self, driver: cuda.Cuda, index: int, message: ShmControlMessage) -> None:
        """Imports pieces. Raises ProtocolError."""
        from transfer.transports.core.native.gpu_mapping import ImportedPiece

        if message.size != self.count or not self.lacks:  # it was asked for twice
            return
        lengths = [message.handles[at : at + LENGTH] for at in range(0, len(message.handles), LENGTH)]
        sizes = [int.from_bytes(length, "little") for length in lengths]
        whole = self._nbytes + sum(sizes)
        if whole > self.size or 0 in sizes or self.count + len(sizes) > MOST_PIECES:
            raise ProtocolError("control_channel", f"pieces of {whole} bytes for a block of {self.size}")
        if message.lost and self.most > 1:
            self.most //= 2
        elif message.lost:
            self.failure = out_of_descriptors()
        elif not sizes:
            self.failure = DeviceError("cuda", "its sender cannot export memory of a GPU: its log says why")
        try:
            for descriptor, size in zip(message.descriptors, sizes, strict=False):
                self._imported.append(ImportedPiece(driver.context(index), descriptor, size))
                self._nbytes += size
        except DeviceError as error:
            self.failure = error

    def _mapped(self, driver: cuda.Cuda, context: Any) -> Any:
        from transfer.transports.core.native.gpu_mapping import MappedPieces

        return MappedPieces(context, self._imported)
