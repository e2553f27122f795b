"""One message in an out-queue: its unwritten part, and how users' memory in it is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.core.pure.codec import CONTROL
from transfer.transports.core.pure.flusher import Released
from transfer.transports.core.pure.pool import PIECE, mapping

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame


class Message:
    """One message in the out-queue."""

    __slots__ = ("begun", "borrowed", "chunks", "control", "frames", "left", "number", "released", "size")

    def __init__(
        self,
        frames: list[OutFrame],
        chunks: list[bytes | memoryview],
        size: int,
        released: Released | None,
        number: int,
    ) -> None:
        self.number = number  # number in the stream; 0 for a control frame
        self.frames = frames
        self.chunks = chunks
        self.left = sum(map(len, chunks))  # bytes that are not written
        self.size = size  # payload bytes, for the counters
        self.control = bool(frames[0][0] & CONTROL)
        self.borrowed = any(type(frame[4]) is not bytes for frame in frames)
        self.begun = False
        self.released = released

    def copies(self, chunks: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Copies of the chunks in users' memory. From the end on, since the kernel may take the beginning
        in the meantime: that part is not copied. Needs no lock; during a long copy other threads get the
        GIL."""
        result = list(chunks)
        behind = 0
        for index in reversed(range(len(chunks))):
            chunk = chunks[index]
            if type(chunk) is bytes:
                behind += len(chunk)
                continue
            copy = memoryview(mapping(len(chunk)) if len(chunk) > PIECE else bytearray(len(chunk)))
            result[index] = copy
            end = len(chunk)
            while end and behind < self.left:
                start = max(0, end - PIECE)
                copy[start:end] = chunk[start:end]
                behind += end - start
                end = start
        return result

    def own(self, before: list[bytes | memoryview], copies: list[bytes | memoryview]) -> None:
        """Replaces its former chunks by `copies`."""
        self.borrowed = False
        missing = len(before) - len(self.chunks)
        chunks = copies[missing:]
        if chunks:
            taken = len(before[missing]) - len(self.chunks[0])
            chunks[0] = chunks[0][taken:] if taken else chunks[0]
        self.chunks = chunks
        if self.begun:
            self.frames = []  # a partly written message is never sent again
            return
        owned = {id(chunk): copy for chunk, copy in zip(before, copies, strict=True)}
        for position, (flags, sequence, topic, meta, data) in enumerate(self.frames):
            if type(data) is not bytes:  # small ones were copied behind their headers, and are views here
                data = owned.get(id(data)) or bytes(data)
                self.frames[position] = (flags, sequence, topic, meta, data)

    def advance(self, count: int) -> None:
        """The kernel took `count` bytes more, fewer than are left."""
        self.begun = True
        self.left -= count
        done = 0
        while count >= len(self.chunks[done]):
            count -= len(self.chunks[done])
            done += 1
        del self.chunks[:done]
        if count:
            self.chunks[0] = memoryview(self.chunks[0])[count:]
