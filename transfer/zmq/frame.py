"""Frame: one part of a message, received without a copy or made to be sent."""

from __future__ import annotations

from typing import Any

from transfer.zmq.constants import MessageOption
from transfer.zmq.error import ZMQError
from transfer.zmq.tracker import MessageTracker
from transports import core
from transports.errors import NotSupported
from transports.wire import Flag

__all__ = ["Frame", "Message"]


class Frame(core.Frame):
    """A part of a message. `bytes` is a copy of it, `buffer` a view.

    data: bytes or anything with a buffer. track: `tracker` tells when no send uses it any more.
    copy, copy_threshold: taken for pyzmq's sake; data is held, never copied here.
    """

    tracker_event = None

    def __init__(
        self,
        data: Any = None,
        track: bool = False,
        copy: bool | None = None,
        copy_threshold: int | None = None,
    ) -> None:
        if isinstance(data, str):
            raise TypeError("text is no buffer: encode it")
        if data is None:
            data = b""
        else:
            memoryview(data).release()
        super().__init__(data)
        self.tracker: MessageTracker | None = MessageTracker() if track else None

    @classmethod
    def _of(cls, arrived: core.Frame) -> Frame:
        """The same frame with what pyzmq's has besides."""
        frame = cls.__new__(cls)
        core.Frame.__init__(
            frame,
            arrived.data,
            flags=arrived.flags,
            sequence=arrived.sequence,
            socket_type=arrived.socket_type,
            topic=arrived.topic,
            meta=arrived.meta,
        )
        frame.tracker = None
        return frame

    def _mark(self, more: bool) -> Frame:
        """Says whether parts follow."""
        self.flags = self.flags | Flag.MORE if more else self.flags & ~Flag.MORE
        return self

    def get(self, option: int | str) -> int | str:
        """MORE and SHARED by number; raises ZMQError (EINVAL) for properties, which we do not keep."""
        if option == MessageOption.MORE:
            return int(self.more)
        if option == MessageOption.SHARED:
            return 0
        raise ZMQError(22, f"a frame has no property {option!r} here; see docs/zmq-compat.md")

    def set(self, option: int | str, value: Any) -> None:
        """Raises NotSupported: what pyzmq sets here belongs to draft socket types."""
        raise NotSupported(f"a frame's {option!r} cannot be set", hint="see docs/zmq-compat.md")

    def __getitem__(self, key: int | str) -> int | str:
        return self.get(key)

    @property
    def group(self) -> str:
        raise NotSupported("RADIO and DISH are draft socket types, which do not exist here")

    @property
    def routing_id(self) -> int:
        raise NotSupported("CLIENT and SERVER are draft socket types, which do not exist here")

    def __bytes__(self) -> bytes:
        return self.bytes

    def __eq__(self, other: object) -> bool:
        if isinstance(other, core.Frame):
            other = other.bytes
        if not isinstance(other, (bytes, bytearray, memoryview)):
            return NotImplemented
        return self.bytes == bytes(other)

    __hash__ = None  # type: ignore[assignment]  # the data may be memory that changes

    def __copy__(self) -> Frame:
        return Frame._of(self)

    def __repr__(self) -> str:
        size = len(self)
        shown = self.bytes if size <= 16 else bytes(self.buffer[:12])
        return f"<zmq.Frame({shown!r}{'' if size <= 16 else f'...{size}B'})>"


Message = Frame
