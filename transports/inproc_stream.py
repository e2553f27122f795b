"""A pair of streams inside one process: messages pass by reference.

Both ends are foreign streams of `core/contract.pyi`, whose queues and counters the core has (`InprocEnd`).
They have no descriptor: `on_readable` and `on_writable` wake the waiting side, in the other end's thread.

The compiled core passes plain messages between two sockets by itself. What comes here is all else: other
memory than `bytes`, tensors, messages that a tracker waits for, topics, control frames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from transfer.transports.base import Stream
from transfer.transports.core import Frame, InprocEnd
from transfer.transports.core.buffers import flat_view
from transfer.transports.core.copies import counted, unsent
from transfer.transports.core.wire import CREDIT, MAX_DATA, Control, Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, TransferError
from transfer.transports.gpu import OnGpu, is_payload
from transfer.transports.inproc_gpu import every_gpu, has_payload, passed
from transfer.transports.prefixes import Prefixes, Subscribable

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame, Sink

_Released = Callable[[BaseException | None], None]
_Kept = TypeVar("_Kept")


class _Message(NamedTuple):
    """One message in transit: frames in memory that does not change any more, or is held.

    nbytes counts payload. released: still to be called, and only there if memory is held.
    """

    frames: list[OutFrame]
    nbytes: int
    control: bool
    released: _Released | None


class InprocStream(InprocEnd, Subscribable, Stream):
    """One end. Made in pairs by `pair`.

    Immutable `bytes` go by reference. Other memory is copied once, when it is sent, so that the sender may
    write to it again; with `hold` it is copied when it is received instead. The payload of a tensor arrives
    in new memory, which the receiver may write to.
    """

    def __init__(self, socket_type: int, lock: threading.Lock) -> None:
        super().__init__()
        self.socket_type = socket_type
        self.max_message = MAX_DATA
        self.checksum = False  # data cannot be damaged in memory
        self._lock = lock
        self._prefixes = Prefixes()

    fd = -1
    hands_over = True
    _other: InprocStream

    @property
    def maps_gpus(self) -> frozenset[bytes]:
        """The GPUs whose memory the other end can use: all."""
        return every_gpu()

    def fileno(self) -> int:
        """-1: there is no descriptor."""
        return -1

    # -- data ----------------------------------------------------------------------------------

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: _Released | None = None,
    ) -> int:
        size = sum(_size(frame[4]) for frame in frames)
        if has_payload(frames):
            if not force and self._has_no_room(size):  # before anything is copied
                return 0
            frames, released = passed(frames, hold, released)
        if self.broken is not None:
            raise self._is_broken()
        if not force and self._has_no_room(size):
            return 0
        control = bool(frames[0][0] & Flag.CONTROL)
        kept = [_kept(frame, hold) for frame in frames]
        message = _Message(kept, size, control, released if hold else None)
        number = self._put(message, size, control, force)
        if number < 0:
            raise self._is_broken()
        if number and released is not None and not hold:
            released(None)
        if number:
            _call(self._other.on_readable)
        return number

    def flush(self) -> bool:
        """Always True: a sent message is with the other end at once."""
        return True

    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        if self.handed is None:
            if self._credit_due:
                self._credit_due = False
                return [_credit_frame(self._other.socket_type, self._other.consumed)]
            queued = self._first()
            if queued is None:
                if self.broken is not None:
                    raise self._is_broken()
                return None
            message = _message(queued)
            error = self._too_large(message)
            if error is not None:
                self._refuse(queued, message, error)
                raise error
            frames = self._frames(message)
            self._hand(queued, message, frames, message.nbytes, message.control)
        self._wake_writer()
        if self._given is not None:
            _release([self._given], None)
            self._given = None
        return self.handed

    def _refuse(self, queued: object, message: _Message, error: TransferError) -> None:
        with self._lock:
            wake = self._break(error)
            self._remove(queued)
        for callback in wake:
            _call(callback)
        _release([message], error)

    def take_unsent(self) -> list[list[OutFrame]]:
        """After the other end closed: the messages that it never took."""
        return self._leave_unsent(unsent)

    def drop_unsent(self) -> int:
        return self._leave_unsent(counted)

    def withdraw(self) -> None:
        """Takes back what the other end has not taken yet."""
        with self._lock:
            left = list(map(_message, self._other._clear()))
            self.queued = self.queued_bytes = 0
        _release(left, None)

    def _leave_unsent(self, keep: Callable[[Iterable[list[OutFrame]]], _Kept]) -> _Kept:
        if self.broken is None or self._closed:
            return keep(())  # the other end may still take them
        with self._lock:
            left = [message for message in map(_message, self._other._clear()) if not message.control]
            self.queued = self.queued_bytes = 0
        kept = keep(message.frames for message in left)
        _release(left, self.broken)  # from here on the sender may change its memory
        return kept

    def close(self) -> int:
        """Ends this end. The other end can still receive what this one sent; messages for this end are lost.

        The number of lost messages is always 0: the other end has them.
        """
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            wake = self._break(Broken("the other end of this inproc connection was closed"))
            lost = self._forget()
        _release(lost, self.broken)
        for callback in wake:
            _call(callback)
        return 0

    @property
    def full(self) -> bool:
        """Whether a message would not be taken now. If so, `on_writable` reports room."""
        return self._has_no_room(1)

    # -- under the lock --------------------------------------------------------------------------

    def _too_large(self, message: _Message) -> ProtocolError | None:
        if message.control or message.nbytes <= self.max_message:
            return None
        return ProtocolError(
            "too_large", f"a message of {message.nbytes} bytes; this end takes {self.max_message}"
        )

    def _forget(self) -> list[_Message]:
        """The messages of both directions, when no end is left to take them."""
        if not self._other._closed:
            return []
        return [_message(queued) for end in (self, self._other) for queued in end._clear()]

    def _break(self, error: TransferError) -> list[Callable[[], None] | None]:
        """Both ends are broken from now on; returns the callbacks to call."""
        for end in (self, self._other):
            if end.broken is None:
                end.broken = error
        other = self._other
        return [other.on_readable, other.on_writable]

    def _frames(self, message: _Message) -> list[Frame]:
        """The receiver's frames, in new memory unless it is immutable."""
        last = len(message.frames) - 1
        made = []
        for index, (flags, sequence, topic, meta, data) in enumerate(message.frames):
            if flags & Flag.TENSOR:  # its receiver may write to it
                data = data if isinstance(data, bytearray) or is_payload(data) else bytearray(data)
            elif not isinstance(data, bytes):
                data = bytes(data)
            flags &= ~Flag.CRC  # nothing was computed, nothing can be checked
            flags |= (Flag.MORE if index < last else 0) | (Flag.TOPIC if topic is not None else 0)
            made.append(
                Frame(
                    data,
                    flags=int(flags),
                    sequence=sequence or self._next_number,
                    socket_type=self._other.socket_type,
                    topic=topic,
                    meta=meta,
                )
            )
        return made

    def _is_broken(self) -> TransferError:
        error = Broken("this inproc connection has ended")
        error.__cause__ = self.broken
        return error


def pair(one: SocketType, other: SocketType) -> tuple[InprocStream, InprocStream]:
    """Two connected streams: the first is the end of a socket of type `one`."""
    lock = threading.Lock()
    first, second = InprocStream(one, lock), InprocStream(other, lock)
    first._join(second)
    return first, second


def _call(callback: Callable[[], None] | None) -> None:
    if callback is not None:
        callback()


def _release(messages: list[_Message], error: BaseException | None) -> None:
    """Drops every reference to the memory before it informs the owner."""
    for message in messages:
        message.frames.clear()
        if message.released is not None:
            message.released(error)


def _kept(frame: OutFrame, hold: bool) -> OutFrame:
    """The frame with data that does not change: `bytes` themselves, a held view, or a copy."""
    flags, sequence, topic, meta, data = frame
    if isinstance(data, bytes) or is_payload(data):
        return frame
    view = flat_view(data)
    if hold:
        return flags, sequence, topic, meta, view
    # A tensor's copy is made where its receiver may write, so that one copy is enough.
    return flags, sequence, topic, meta, bytearray(view) if flags & Flag.TENSOR else bytes(view)


def _message(queued: object) -> _Message:
    """The message that lies in a queue; the compiled core puts plain ones there as they are."""
    if isinstance(queued, _Message):
        return queued
    parts = cast("list[bytes]", queued if isinstance(queued, list) else [queued])
    frames: list[OutFrame] = [(0, 0, None, None, part) for part in parts]
    return _Message(frames, sum(map(len, parts)), False, None)


def _size(data: Any) -> int:
    if type(data) is OnGpu:
        return data.nbytes
    return len(data) if isinstance(data, bytes) or is_payload(data) else memoryview(data).nbytes


def _credit_frame(socket_type: int, consumed: int) -> Frame:
    return Frame(CREDIT.pack(Control.CREDIT, consumed), flags=int(Flag.CONTROL), socket_type=socket_type)
