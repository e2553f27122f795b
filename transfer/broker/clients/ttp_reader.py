"""The receiving half of the TTP client: reads frames from a socket, and assembles streams."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer.broker.protocols.ttp import (
    EOF,
    HEADER_SIZE,
    Header,
    TtpKind,
    TtpLimits,
    decode_header,
    decode_meta,
    decode_topic,
)
from transfer.transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel

#: the buffer for small frames; of a large frame, everything except its data has to fit in it
_BUFFER = 256 << 10
MOST_META = 128 << 10


class TtpFrame(NamedTuple):
    """A received frame. data: a view of memory that only the receiver refers to."""

    kind: TtpKind
    topic: str
    meta: bytes
    data: memoryview
    flags: int
    stream_id: int


class TtpReceived(NamedTuple):
    """A message: of a PUBLISH, or of a whole stream.

    meta: the metadata if they are a JSON object, else {"": text}. data: writable bytes that only the receiver
    refers to. flags: of a stream, the union of all its frames' flags.
    """

    topic: str
    meta: dict[str, Any]
    data: memoryview
    flags: int
    stream_id: int


class TtpReader:
    """Reads frames from a non-blocking socket; large data go directly into separate memory."""

    def __init__(self, limits: TtpLimits) -> None:
        self._limits = limits
        self._buffer = memoryview(bytearray(_BUFFER))
        self._begin = self._end = 0
        self._header: Header | None = None
        self._topic, self._meta = "", b""
        self._data = memoryview(b"")
        self._filled = 0

    def read(self, connection: socket.socket | TlsChannel) -> int:
        """Reads once, and returns the number of bytes, 0 at the end. Raises BlockingIOError, OSError."""
        if self._header is not None:
            nbytes = connection.recv_into(self._data[self._filled :])
            self._filled += nbytes
        else:
            if self._begin:
                rest = bytes(self._buffer[self._begin : self._end])
                self._buffer[: len(rest)] = rest
                self._begin, self._end = 0, len(rest)
            nbytes = connection.recv_into(self._buffer[self._end :])
            self._end += nbytes
        return nbytes

    def take(self) -> TtpFrame | None:
        """Returns the next frame, if it is complete. A ProtocolError makes the connection unusable."""
        if self._header is None and not self._take_head():
            return None
        if self._header is None or self._filled < len(self._data):
            return None
        header, self._header = self._header, None
        return TtpFrame(header.kind, self._topic, self._meta, self._data, header.flags, header.stream_id)

    def _take_head(self) -> bool:
        """Takes a frame without its data, and the data that were read already."""
        if self._end - self._begin < HEADER_SIZE:
            return False
        header = decode_header(self._buffer, self._begin, self._limits)
        data_at = self._begin + header.data_at
        if data_at > self._end:
            return False
        topic_at = self._begin + HEADER_SIZE
        meta_at = topic_at + header.topic_size
        self._topic = decode_topic(bytes(self._buffer[topic_at:meta_at]))
        self._meta = bytes(self._buffer[meta_at:data_at])
        self._data = memoryview(bytearray(header.data_size))
        self._filled = min(header.data_size, self._end - data_at)
        self._data[: self._filled] = self._buffer[data_at : data_at + self._filled]
        self._begin = data_at + self._filled
        self._header = header
        return True


class _Open(NamedTuple):
    topic: str
    meta: bytes
    data: bytearray


class Assembly:
    """Assembles messages of frames. most: bytes of all open streams together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, tuple[_Open, int]] = {}

    def add(self, frame: TtpFrame) -> TtpReceived | None:
        """Adds a frame, and returns the message that it completes.

        Raises ProtocolError if it is too large.
        """
        if frame.kind == TtpKind.PUBLISH:
            return _received(frame.topic, frame.meta, frame.data, frame.flags, frame.stream_id)
        if frame.kind == TtpKind.ERROR:
            self._open.pop(frame.stream_id, None)
            return None
        if frame.kind == TtpKind.META:
            stream, flags = _Open(frame.topic, frame.meta, bytearray()), frame.flags
        else:
            found = self._open.get(frame.stream_id)
            if found is None:  # it began before the subscription, or is for `recv_frame`
                return None
            stream, flags = found[0], found[1] | frame.flags
        if sum(len(one.data) for one, _ in self._open.values()) + len(frame.data) > self._most:
            raise ProtocolError("too_large", f"streams of more than {self._most} bytes")
        stream.data.extend(frame.data)
        if not frame.flags & EOF:
            self._open[frame.stream_id] = stream, flags
            return None
        self._open.pop(frame.stream_id, None)
        return _received(stream.topic, stream.meta, memoryview(stream.data), flags, frame.stream_id)


def _received(topic: str, meta: bytes, data: memoryview, flags: int, stream_id: int) -> TtpReceived:
    values = decode_meta(meta)
    if values is None:
        values = {"": meta.decode(errors="replace")}
    return TtpReceived(topic, values, data, flags, stream_id)
