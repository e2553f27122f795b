"""Frame: one part of a message, received without a copy or made to be sent."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from threading import Event
from types import MappingProxyType
from typing import Any

from transfer.sockets.defaults import PYZMQ
from transfer.transports import core
from transfer.transports.arguments import whole
from transfer.transports.core.wire import Flag
from transfer.transports.errors import NoSuchAttribute, NotSupported, not_a_buffer
from transfer.zmq.constants import MessageOption
from transfer.zmq.error import ZMQError
from transfer.zmq.tracker import _FINISHED_TRACKER, MessageTracker

__all__ = ["COPY_THRESHOLD", "Frame", "Message"]

#: smaller data is copied, unless a frame or a socket has another threshold
COPY_THRESHOLD = PYZMQ.copy_threshold


class Frame(core.Frame):
    """A part of a message. `bytes` is a copy of it, `buffer` a view.

    data: bytes or any object with a buffer. track: `tracker` reports when neither this frame nor a send uses
    the data any more. copy: copies the data; None: if it is smaller than `copy_threshold` bytes.
    """

    tracker_event = None
    #: of the peer that sent it, by name
    _properties: Mapping[str, str] = MappingProxyType({})
    tracker: MessageTracker | None = None

    def __init__(
        self,
        data: Any = None,
        track: bool = False,
        copy: bool | None = None,
        copy_threshold: int | None = None,
    ) -> None:
        data = b"" if data is None else data
        try:
            with memoryview(data) as view:
                size = view.nbytes
        except TypeError:
            raise not_a_buffer(data) from None
        if copy_threshold is not None:
            whole(copy_threshold, "copy_threshold")
        if copy or (copy is None and size < (COPY_THRESHOLD if copy_threshold is None else copy_threshold)):
            data = bytes(data)
            self.tracker = _FINISHED_TRACKER if track else None
        else:
            self.tracker = _track(self) if track else None
        super().__init__(data)

    @classmethod
    def _of(cls, arrived: core.Frame) -> Frame:
        """Makes a frame of this class from one of the core."""
        frame = cls.__new__(cls)
        data = arrived.data
        core.Frame.__init__(
            frame,
            bytearray(data) if type(data) is bytes else data,  # received data may be changed
            flags=arrived.flags,
            sequence=arrived.sequence,
            socket_type=arrived.socket_type,
            topic=arrived.topic,
            meta=arrived.meta,
        )
        frame.tracker = None
        return frame

    def _mark(self, more: bool) -> Frame:
        """Sets whether parts follow."""
        self.flags = self.flags | Flag.MORE if more else self.flags & ~Flag.MORE
        return self

    def get(self, option: int | str) -> int | str:
        """Returns MORE and SHARED by number, and properties of the peer by name, as an authenticator gave
        them. Raises ZMQError (EINVAL) for others."""
        if option == MessageOption.MORE:
            return int(self.more)
        if option == MessageOption.SHARED:
            return 0
        if isinstance(option, str) and option in self._properties:
            return self._properties[option]
        raise ZMQError(22, f"a frame has no property {option!r} here; see docs/zmq-compat.md")

    def set(self, option: int | str, value: Any) -> None:
        """Raises NotSupported: pyzmq sets only options of draft socket types here."""
        raise NotSupported(f"a frame's {option!r} cannot be set", hint="see docs/zmq-compat.md")

    def __getitem__(self, key: int | str) -> int | str:
        return self.get(key)

    @property
    def group(self) -> str:
        raise NoSuchAttribute("RADIO and DISH are draft socket types, which do not exist here")

    @property
    def routing_id(self) -> int:
        raise NoSuchAttribute("CLIENT and SERVER are draft socket types, which do not exist here")

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
        made = Frame._of(self)
        made._properties = self._properties
        return made

    def __repr__(self) -> str:
        size = len(self)
        if size <= 16:
            return f"<zmq.Frame({self.bytes!r})>"
        return f"<zmq.Frame({bytes(self.buffer[:12])!r}...{_short(size)})>"


Message = Frame


def with_properties(sock: Any, part: core.Frame) -> Frame:
    """A frame of this class for one of the core, with the properties of its peer: of that which sent the
    newest message of this thread."""
    frame = Frame._of(part)
    stream = sock._newest_stream if sock._keeps_properties else None
    agreement = None if stream is None or stream.peer is None else stream.peer.agreement
    if agreement is not None:
        frame._properties = agreement.properties
    return frame


def _short(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size}B"


def _track(frame: Frame) -> MessageTracker:
    """Makes a tracker that is done when the frame is freed; sends add theirs."""
    gone = Event()
    tracker = MessageTracker(gone)
    tracker.frame = weakref.ref(frame, lambda _: gone.set())
    return tracker
