"""Frames to bytes and back, without I/O. For the layout see `transports/core/wire.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.core import frames
from transfer.transports.core.buffers import flat_view
from transfer.transports.core.frames import check_header, chosen, encode_head, meta_length
from transfer.transports.core.message_size import Size
from transfer.transports.core.pure.frame import Frame
from transfer.transports.core.pure.pool import HeldBuffer, Lease, Pool, copy_into
from transfer.transports.core.wire import (
    BY_REFERENCE,
    HEADER,
    HEADER_SIZE,
    LAST_TYPE,
    REFERENCE,
    REFERENCE_BIT,
    Flag,
)
from transfer.transports.errors import InternalError, ProtocolError
from transfer.transports.sizes import LARGE

if TYPE_CHECKING:
    from transfer.transports.core.contract import Carrier, OutFrame, Sink

# Plain integers: arithmetic on IntFlag costs more than the rest of a small frame.
TENSOR, TOPIC, CONTROL = int(Flag.TENSOR), int(Flag.TOPIC), int(Flag.CONTROL)
MORE, CRC, EXTENDED, LZ4 = int(Flag.MORE), int(Flag.CRC), int(Flag.EXTENDED), int(Flag.LZ4)
_NOT_PLAIN = TENSOR | TOPIC | CONTROL | MORE | EXTENDED | LZ4
_LAST_TYPE = int(LAST_TYPE)
#: payloads up to this size are copied behind their header when they are sent: cheaper than an iovec. For
#: larger ones that are incomplete a sink is called before the rest is read
_SMALL = 4 * 1024


# --- out --------------------------------------------------------------------------------------


def payload_of(data: Any) -> bytes | memoryview:
    """As `frames.payload_of`, which takes neither a frame nor a held buffer of this core."""
    if type(data) is bytes:
        return data
    if isinstance(data, Frame):
        return payload_of(data.data)
    if isinstance(data, HeldBuffer):
        return data.view
    return frames.payload_of(data)


def normalize(given: Sequence[OutFrame]) -> list[OutFrame]:
    """The same frames with payloads that can be written. Raises UsageError for frames that cannot be sent."""
    return frames.normalize(given, payload_of)


def encode(
    frames: Sequence[OutFrame], socket_type: int, sequence: int, checksum: bool
) -> list[bytes | memoryview]:
    """The bytes of one message, in pieces. Small payloads are copied, others referenced.

    `frames` come from `normalize`. `sequence` is for frames without one.
    """
    chunks: list[bytes | memoryview] = []
    more = MORE if len(frames) > 1 else 0
    left = len(frames)
    for flags, own_sequence, topic, meta, data in frames:
        left -= 1
        flags = int(flags) | (more if left else 0) | (CRC if checksum else 0)
        kind = socket_type | (REFERENCE_BIT if flags & BY_REFERENCE else 0)
        head = encode_head(kind, flags, own_sequence or sequence, topic, meta, data, len(data))
        if len(data) <= _SMALL:
            chunks.append(head + data)
        else:
            chunks.append(head)
            chunks.append(data)
    return chunks


# --- in ---------------------------------------------------------------------------------------


class _Head(frames.Head):
    """A frame of this core that has not arrived entirely."""

    __slots__ = ()
    make = Frame


class Decoder:
    """Bytes of one connection in, messages out. Not thread-safe.

    `feed` takes the bytes that were read; complete messages wait in `messages`. The data of a large frame is
    not fed: while `head` is set, the owner reads it into `body()` and calls `filled(n)`.
    After a ProtocolError the decoder is unusable, but `messages` stay valid.
    """

    def __init__(self, pool: Pool, max_message: int) -> None:
        self.max_message = max_message
        self.carrier: Carrier | None = None
        self.messages: deque[list[Frame]] = deque()
        self.head: _Head | None = None
        #: indices of frames of the newest message whose data a sink of this call placed
        self.placed: set[int] = set()
        self._pool = pool
        self._parts: list[Frame] = []
        #: a sink refused a frame of this message: the rest of it is read without one
        self._refused = False
        self._size = Size()
        self._rest = b""
        self._body: Any = None
        self._view: memoryview | None = None
        self._got = 0

    @property
    def inside(self) -> bool:
        """A message has started and is not complete."""
        return bool(self._rest or self._parts or self.head is not None)

    @property
    def starving(self) -> bool:
        """All received bytes were taken, and a message is not complete."""
        if self.messages:
            return False
        if self.head is None:
            return bool(self._rest or self._parts)
        return (len(self._rest) if self._view is None else self._got) < self.head.length

    def feed(self, data: bytes) -> None:
        """Takes any number of bytes. Raises ProtocolError."""
        if self.head is not None:
            raise AssertionError("the data of a large frame is read into body()")
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position, end = 0, len(data)
        while end - position >= HEADER_SIZE:
            magic, version, kind, flags, sequence, topic_length, length, checksum = HEADER.unpack_from(
                data, position
            )
            references = self.carrier is not None
            check_header(magic, version, kind, flags, topic_length, length, self.max_message, references)
            start = position + HEADER_SIZE
            plain = not flags & _NOT_PLAIN and kind < REFERENCE_BIT and not self._parts
            if plain and start + length <= end and length < LARGE:
                # The fast path of the common case: one small plain frame that is complete.
                head = _Head(flags, sequence, kind, length, checksum, None, None)
                self.messages.append([head.frame(data[start : start + length])])
                position = start + length
                continue
            meta_size = meta_length(flags, data, start, end)
            if meta_size < 0 or end - start < meta_size + topic_length:
                break
            meta = data[start : start + meta_size] if flags & TENSOR else None
            start += meta_size
            topic = data[start : start + topic_length] if flags & TOPIC else None
            start += topic_length
            if end - start < length < _SMALL:
                break
            if not kind & REFERENCE_BIT:
                self._size.add(flags, meta_size + topic_length + length, self.max_message)
            head = _Head(flags, sequence, kind, length, checksum, meta, topic)
            if length >= LARGE or end - start < length:
                self.head = head
                self._rest = data[start:]
                return
            if kind & REFERENCE_BIT:
                self._add(self._referred(head, data[start : start + length]))
            else:
                self._add(head.frame(self._small(head, data[start : start + length])))
            position = start + length
        self._rest = data[position:]

    def _small(self, head: _Head, data: bytes) -> bytes | Lease:
        if not head.flags & TENSOR:
            return data
        # Received tensors are writable and own their memory.
        lease = _room_for(len(data), self._pool)
        memoryview(lease)[:] = data
        return lease

    def _referred(self, head: _Head, reference: bytes) -> Frame:
        """A frame whose payload travels apart from the connection. The checksum is that of the reference."""
        head.socket_type &= ~REFERENCE_BIT
        frame: Frame = head.frame(reference)
        frame.flags &= ~CRC
        size = REFERENCE.unpack(reference)[3]
        if size > self.max_message:
            raise ProtocolError(
                "too_large", f"{size} bytes, the limit is {self.max_message}", hint="raise maxmsgsize"
            )
        self._size.add(frame.flags, size, self.max_message)
        assert self.carrier is not None
        frame.data = self.carrier.fetch(reference)
        return frame

    def _add(self, frame: Frame) -> None:
        if frame.flags & CONTROL:
            self.messages.append([frame])
            return
        self._parts.append(frame)
        if not frame.flags & MORE:
            self.messages.append(self._parts)
            self._parts = []
            self._refused = False

    # -- the data of a large frame

    def body(self, sink: Sink | None) -> memoryview:
        """The memory for the rest of the large frame's data. A sink, if there is one, is called first.

        A message that it refuses is read to its end; `place` calls it again. Raises ProtocolError.
        """
        head = self.head
        assert head is not None
        if self._view is None:
            if sink is not None and not self.messages and not head.flags & (CONTROL | LZ4):
                self._body = self._ask(sink, head)
                if self._body is not None:
                    self.placed.add(len(self._parts))
            if self._body is None:
                self._body = _room_for(head.length, self._pool)
            self._view = flat_view(self._body)
            known, self._rest = self._rest[: head.length], self._rest[head.length :]
            self._view[: len(known)] = known
            self._got = len(known)
        return self._view[self._got :]

    def _ask(self, sink: Sink, head: _Head) -> Any:
        try:
            return None if self._refused else chosen(sink, head.meta, head.topic, head.length)
        except ProtocolError:
            raise
        except Exception:  # noqa: BLE001 - `place` calls it again, and lets the exception out
            self._refused = True

    def filled(self, nbytes: int) -> bool:
        """`nbytes` more were read into `body()`; True when the frame is complete. Raises ProtocolError."""
        head = self.head
        assert head is not None
        self._got += nbytes
        if self._got < head.length:
            return False
        data, self.head, self._body, self._view, self._got = self._body, None, None, None, 0
        if head.length < LARGE and not head.flags & TENSOR and len(self._parts) not in self.placed:
            data = bytes(data)
        self._add(head.frame(data))
        rest, self._rest = self._rest, b""
        if rest:
            self.feed(rest)
        return True

    def take(self) -> tuple[list[Frame], set[int]]:
        """The oldest message, and the indices of its frames in the sink's memory."""
        placed, self.placed = self.placed, set()
        return self.messages.popleft(), placed

    def abandon(self) -> None:
        """Drops the message that cannot be completed, and its memory."""
        self.head = self._body = self._view = None
        self._parts, self._rest, self._refused = [], b"", False
        if not self.messages:
            self.placed = set()

    def unplace(self) -> None:
        """Moves messages that were not taken out of a sink's buffers: its call has ended.

        Raises ProtocolError when there is no memory for that.
        """
        if not self.placed:
            return
        placed, self.placed = self.placed, set()
        frames = self.messages[0] if self.messages else self._parts
        if self._view is not None and frames is self._parts and len(frames) in placed:
            assert self.head is not None
            lease = _room_for(self.head.length, self._pool)
            view = memoryview(lease)
            copy_into(view[: self._got], self._view[: self._got])
            self._body, self._view = lease, view
        for index, frame in enumerate(frames):
            if index in placed:
                frame.data = copied(frame.data, self._pool)


def _room_for(nbytes: int, pool: Pool) -> Lease:
    """Memory for a payload. Raises ProtocolError: without any, the connection ends."""
    try:
        return pool.lease(nbytes)
    except InternalError:
        hint = "lower maxmsgsize, or free received tensors sooner"
        raise ProtocolError("no_memory", f"a frame of {nbytes} bytes", hint=hint) from None


def copied(data: Any, pool: Pool) -> Lease:
    """The same bytes in a lease of the pool. Raises ProtocolError as `_room_for` does."""
    view = flat_view(data)
    lease = _room_for(view.nbytes, pool)
    copy_into(memoryview(lease), view)
    return lease


def place(frames: list[Frame], sink: Sink, placed: set[int]) -> None:
    """Calls the sink for a message that arrived before it was known, and copies the message there.

    If the sink raises, the frames stay unchanged.
    """
    buffers = [
        None
        if index in placed or frame.flags & LZ4  # compressed data cannot be placed
        else chosen(sink, frame.meta, frame.topic, len(frame))
        for index, frame in enumerate(frames)
    ]
    for frame, buffer in zip(frames, buffers, strict=True):
        if buffer is not None:
            copy_into(flat_view(buffer), flat_view(frame.data))
            frame.data = buffer
