"""Memory of a peer's GPU, mapped here: an allocation by its handle, or pieces by their descriptors."""

from __future__ import annotations

from typing import Any

from transfer.transports import cuda
from transfer.transports.errors import DeviceError, ProtocolError
from transfer.transports.shm.control_channel import HANDLE, LENGTH, UUID
from transfer.transports.shm.gpu_blocks import own_blocks


class MappedGpuBlock:
    """An allocation of the peer, mapped when the first payload in it is fetched."""

    is_lent = False

    def __init__(self, size: int, handles: bytes) -> None:
        self.size = size
        self._handles, self._mapped = handles, False
        self.uuid, self.handle = handles[:UUID], handles[UUID : UUID + HANDLE]
        self.event_handle = handles[UUID + HANDLE :]
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
        pointer = self._map(driver, context)
        try:
            self.ready = GpuEvent(context, handle=self.event_handle)
        except BaseException:
            self._unmap(context, pointer)
            raise
        self.context, self.pointer, self._mapped = context, pointer, True

    def _map(self, driver: cuda.Cuda, context: Any) -> int:
        pointer: int = context.map(self.handle)
        if driver.range_of(pointer)[1] < self.size:
            context.unmap(pointer)
            raise ProtocolError("reference", "memory of a GPU is smaller than its announcement")
        return pointer

    def _unmap(self, context: Any, pointer: int) -> None:
        context.unmap(pointer)

    def recorded(self, used: tuple[Any, int, Any]) -> Any:
        """An event of the moment when the last use of a payload is done. Raises DeviceError."""
        return self._event_after(*used)

    def unmap(self) -> None:
        """Idempotent."""
        pointer, self.pointer, self.ready = self.pointer, 0, None
        if pointer and self._mapped:
            self._unmap(self.context, pointer)


class Pieces:
    """Of one block, imported when they are announced. failure: why they could not be."""

    def __init__(self) -> None:
        self.imported: list[Any] = []
        self.failure: DeviceError | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(piece.size for piece in self.imported)

    def add(self, index: int, lengths: bytes, descriptors: list[int]) -> None:
        """Imports pieces of these lengths, 8 bytes each."""
        self._count += len(descriptors)
        driver = cuda.load()
        if driver is None or self.failure is not None:
            return
        from transfer.transports.core.native.gpu_pieces import ImportedPiece

        try:
            for position, descriptor in enumerate(descriptors):
                size = int.from_bytes(lengths[position * LENGTH : (position + 1) * LENGTH], "little")
                self.imported.append(ImportedPiece(driver.context(index), descriptor, size))
        except DeviceError as error:
            self.imported.clear()
            why = f"pieces of another process's memory cannot be imported: {error}"
            self.failure = DeviceError(error.reason, why, hint="let the sender copy it: without copy=False")


class MappedInPieces(MappedGpuBlock):
    """Pieces behind each other. Raises ProtocolError where they are not of this size."""

    def __init__(self, size: int, handles: bytes, pieces: Pieces) -> None:
        super().__init__(size, handles)
        if pieces.failure is None and pieces.size != size:
            raise ProtocolError("control_channel", f"pieces of {pieces.size} bytes for a block of {size}")
        self._pieces = pieces
        self._range: Any = None

    def _map(self, driver: cuda.Cuda, context: Any) -> int:
        from transfer.transports.core.native.gpu_pieces import MappedPieces

        if self._pieces.failure is not None:
            raise self._pieces.failure
        self._range = MappedPieces(context, self._pieces.imported)
        pointer: int = self._range.pointer
        return pointer

    def _unmap(self, context: Any, pointer: int) -> None:
        self._range.close()
