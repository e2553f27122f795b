"""One frame as received."""

from __future__ import annotations

from typing import Any

from transfer.transports.core.buffers import flat_view
from transfer.transports.core.wire import Flag

_MORE = int(Flag.MORE)


class Frame:
    """One frame as received. Also pyzmq's Frame, as `recv(copy=False)` returns it.

    data: bytes for small plain frames, else a `Lease` or the buffer that a sink chose.
    meta: the tensor header as on the wire, or None. topic: None if there is none.

    `memoryview(frame)` needs Python 3.12 in this core; `frame.buffer` works everywhere.
    """

    __slots__ = ("data", "flags", "meta", "sequence", "socket_type", "topic")

    def __init__(
        self,
        data: Any = b"",
        *,
        flags: int = 0,
        sequence: int = 0,
        socket_type: int = 0,
        topic: bytes | None = None,
        meta: bytes | None = None,
    ) -> None:
        self.data = data
        self.flags = flags
        self.sequence = sequence
        self.socket_type = socket_type
        self.topic = topic
        self.meta = meta

    def __bytes__(self) -> bytes:
        return self.bytes

    @property
    def more(self) -> bool:
        """Another frame of the same message follows."""
        return bool(self.flags & _MORE)

    @property
    def bytes(self) -> bytes:
        """A copy of the data (the data itself where it is bytes)."""
        return self.data if type(self.data) is bytes else bytes(self.buffer)

    @property
    def buffer(self) -> memoryview:
        """A view of the data, format "B"."""
        return flat_view(self.data)

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.buffer

    def __len__(self) -> int:
        return len(self.data) if type(self.data) is bytes else self.buffer.nbytes

    def __repr__(self) -> str:
        return f"<Frame {self.sequence}: {len(self)} bytes, flags {self.flags:#x}>"
