"""The sending half of a stream: the out-queue, gathering, and the handling of a full kernel."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from transfer.transports.callbacks import nothing
from transfer.transports.core import fork
from transfer.transports.core.pure.codec import CONTROL, CRC, EXTENDED, LZ4, encode, normalize
from transfer.transports.core.pure.flusher import Flusher, Released
from transfer.transports.core.pure.message import Message
from transfer.transports.core.wire import CREDIT, Control
from transfer.transports.errors import PLAIN_HINT, TOO_NEW, Broken, NotSupported
from transfer.transports.sizes import LARGE

if TYPE_CHECKING:
    from transfer.transports.core.contract import Carrier, OutFrame
    from transfer.transports.core.python_tls import TlsChannel

#: bytes from which output does not wait: a burst is gathered up to here
COALESCE = 64 * 1024
#: a message after a pause of so many ns is not part of a burst
_PAUSE_NS = 60_000
#: buffers in one write; the system allows 1024
_MAX_IOV = 512
#: bytes of one system call, and of one round of them: other threads wait for the lock, or for the flusher
SLICE, _ROUND = 1 << 20, 4 << 20
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class _Owner(Protocol):
    """The socket that uses a stream, as the stream sees it. Called with no lock of the stream held."""

    def _opened(self, stream: Outgoing) -> None: ...
    def _closing(self, stream: Outgoing) -> None: ...
    def _has_room(self, stream: Outgoing) -> None: ...


class Outgoing:
    """The sending part of `Stream` in core/contract.pyi.

    `_lock` guards the queue; the flusher's lock may be taken under it. Callbacks are called with
    no lock held.
    """

    def __init__(self, socket_type: int, flusher: Flusher) -> None:
        flusher.check()
        self.sent = self.sent_bytes = self.queued = self.queued_bytes = 0
        self.received = self.confirmed = self.dropped = 0
        self.blocked_ns = self.last_sent_ns = 0
        self.send_high_water = self.send_high_water_bytes = 0
        self.checksum = self.credits = self.plain = False
        self.broken: BaseException | None = None
        self._socket_type = int(socket_type)
        self._flusher = flusher
        self._socket: socket.socket | None = None
        self._channel: TlsChannel | None = None  # TLS between the queue and the socket, or None
        self._owner_ref: Callable[[], _Owner | None] = nothing  # a weak reference
        self._lock = threading.Lock()
        self._queue: deque[Message] = deque()
        self._pending_bytes = 0  # of frames, headers included
        self._armed = False  # the flusher writes soon
        self._kernel_full = False  # the flusher waits until the kernel has room
        self._starved = False  # a sender was refused and waits for room
        self._turn = True  # a message was received since the last send: answer at once
        self._finished: list[tuple[Message, BaseException | None]] = []
        self._room = False
        self._credited = 0
        self._last_credit: Message | None = None
        self._credit_listed = False

    @property
    def carrier(self) -> Carrier | None:
        """The receiving half has it."""
        return None

    @property
    def fd(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    # -- taking a message

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: Released | None = None,
    ) -> int:
        self._flusher.check_process()  # before the lock, which may be held for ever in a forked child
        message = self._offer(normalize(frames), force, hold, released)
        if message is None:
            return 0
        try:
            if message.borrowed and not hold:
                self._own(message)
            self._settle(message)
        except BaseException as error:
            self._take_back(message, error)
            raise
        return message.number or 1

    def _offer(
        self,
        frames: list[OutFrame],
        force: bool,
        hold: bool,
        released: Released | None,
        several: bool = False,
    ) -> Message | None:
        """As `_take`, with large payloads in the carrier, if there is one."""
        carrier = self.carrier
        if carrier is None or force or not any(len(frame[4]) >= LARGE for frame in frames):
            return self._take(frames, force, released)
        with self._lock:
            self._check()
            if self._crowded(0) and not self._makes_room(0):
                return None
        carried = carrier.place(frames, hold, released, several)
        if carried is None:
            return self._take(frames, force, released)
        placed, released, saved = carried
        try:
            message = self._take(placed, True, released)
        except BaseException:
            carrier.take_back(placed)
            raise
        self.sent_bytes += saved
        return message

    def _take(self, frames: list[OutFrame], force: bool, released: Released | None) -> Message | None:
        """Queues a normalized message, still in users' memory, and writes if it is time.

        None: full. The caller must `_settle(message)` afterwards, with no lock held.
        """
        size = sum([len(frame[4]) for frame in frames])
        if self.plain and (len(frames) > 1 or frames[0][0] & (CRC | EXTENDED | LZ4)):
            raise NotSupported(TOO_NEW, hint=PLAIN_HINT)
        message: Message | None = None
        try:
            with self._lock:
                self._check()
                if not force and self._crowded(size) and not self._makes_room(size):
                    return None
                sequence = 0 if frames[0][0] & CONTROL else self.sent + 1
                chunks = encode(frames, self._socket_type, sequence, self.checksum and not self.plain)
                message = Message(frames, chunks, size, released, sequence)
                self._append(message)
                if self._socket is not None and not self._kernel_full:
                    self._write_or_gather(message)
                    if self.broken is not None and message.left and not message.begun:
                        self._untake(message)
                        self._check()
        except BaseException as error:
            if message is not None:
                self._take_back(message, error)
            raise
        return message

    def _append(self, message: Message) -> None:
        """All of it, or nothing."""
        before = self._pending_bytes, self.sent, self.sent_bytes, self.queued, self.queued_bytes
        try:
            self._queue.append(message)
            self._pending_bytes += message.left
            if not message.control:
                self.sent += 1
                self.sent_bytes += message.size
                self.queued += 1
                self.queued_bytes += message.size
        except BaseException:
            self._pending_bytes, self.sent, self.sent_bytes, self.queued, self.queued_bytes = before
            if message in self._queue:
                self._queue.remove(message)
            raise

    def _check(self) -> None:
        if self._flusher.generation != fork.generation:
            raise fork.refuse()
        if self.broken is not None:
            raise Broken(f"the connection is gone: {self.broken}") from self.broken

    def _crowded(self, size: int) -> bool:
        """True when a message of this size must wait. An empty queue accepts any message."""
        if not self.queued:
            return False
        messages, nbytes = self.send_high_water, self.send_high_water_bytes
        return bool((messages and self.queued >= messages) or (nbytes and self.queued_bytes + size > nbytes))

    def _makes_room(self, size: int) -> bool:
        if not self._kernel_full:
            self._write()
            self._check()
        self._starved = self._crowded(size)
        return not self._starved

    def _untake(self, message: Message) -> None:
        """The send fails before a byte of this message is written: undoes `_take`."""
        message.released = None
        self._queue.remove(message)
        self._leave(message, None)
        if not message.control:
            self.sent -= 1
            self.sent_bytes -= message.size

    # -- writing, under _lock

    def _write_or_gather(self, message: Message) -> None:
        # The first message after a pause is written at once. So is an answer: the peer waits for it.
        alone = len(self._queue) == 1
        paused = alone and (self._turn or time.monotonic_ns() - self.last_sent_ns > _PAUSE_NS)
        if paused or message.control or self._pending_bytes >= COALESCE:
            self._write()
        elif not self._armed:
            self._armed = True
            self._flusher.arm(self)

    def _write(self) -> None:
        """Writes until the queue is empty, the kernel is full, or the round is over."""
        self._turn = False
        try:
            if self._socket is None or self._write_round(self._socket):
                self._end_drain()
            elif not self._kernel_full:
                self._kernel_full = True
                self._flusher.drain(self._socket.fileno(), self)
        except OSError as error:  # without its traceback, which would keep the written memory
            self._break(failed(error.with_traceback(None)))
        except BaseException as error:
            # An interrupt between the system call and the update of the queue, or before the flusher has it:
            # how much was written is unknown, so nothing may follow.
            self._break(interrupted(error))
            raise

    def _write_round(self, sock: socket.socket) -> bool:
        """False: the kernel is full, or the round is over. Raises OSError."""
        done = 0
        while self._has_output and self.broken is None:
            if done >= _ROUND:
                return False
            try:
                if not self._queue:
                    self._push_sealed()
                    continue
                count = (self._channel or sock).sendmsg(self._next_chunks(), (), _NOSIGNAL)
            except BlockingIOError:
                return False
            done += count
            self._written(count)
        return True

    @property
    def _has_output(self) -> bool:
        """Messages wait, or encrypted bytes that the kernel did not take."""
        return bool(self._queue) or (self._channel is not None and self._channel.unsent > 0)

    def _push_sealed(self) -> None:
        assert self._channel is not None
        if not self._channel.flush():
            raise BlockingIOError

    def _next_chunks(self) -> list[bytes | memoryview]:
        first = self._queue[0]
        if len(first.chunks[0]) > SLICE:
            return [memoryview(first.chunks[0])[:SLICE]]
        chunks: list[bytes | memoryview] = []
        size = 0
        for message in islice(self._queue, _MAX_IOV):
            for chunk in message.chunks:
                size += len(chunk)
                if chunks and (size > SLICE or len(chunks) >= _MAX_IOV):
                    return chunks
                chunks.append(chunk)
        return chunks

    def _written(self, count: int) -> None:
        self.last_sent_ns = time.monotonic_ns()
        self._pending_bytes -= count
        queue = self._queue
        while count:
            message = queue[0]
            if count < message.left:
                message.advance(count)
                return
            count -= message.left
            message.left = 0
            queue.popleft()
            self._leave(message, None)

    def _leave(self, message: Message, error: BaseException | None) -> None:
        """The message has left the queue."""
        self._pending_bytes -= message.left
        message.left = 0
        message.chunks, message.frames, message.borrowed = [], [], False
        if not message.control:
            self.queued -= 1
            self.queued_bytes -= message.size
        if message.released is not None:
            self._finished.append((message, error))
        if self._starved:
            self._starved = False
            self._room = True

    def _end_drain(self) -> None:
        if self._kernel_full and self._socket is not None:
            self._kernel_full = False
            self._flusher.drained(self._socket.fileno())

    def _break(self, error: BaseException) -> None:
        """Ends sending. Messages of which nothing was written stay for `take_unsent`."""
        if self.broken is None:
            self.broken = error
        if self._queue and self._queue[0].begun:
            self._leave(self._queue.popleft(), error)
        self._starved = False
        self._room = True  # senders that wait for room must check again
        self._end_drain()

    # -- for callers, with no lock held

    def flush(self) -> bool:
        """Writes what the kernel takes. True when the queue is empty."""
        with self._lock:
            if self._has_output and self._socket is not None and self.broken is None:
                self._write()
            empty = not self._has_output
        self._settle()
        return empty

    def _own(self, message: Message) -> None:
        """The caller gets its memory back: copies the unwritten part."""
        with self._lock:
            before = list(message.chunks)
        if not before:
            return
        copies = message.copies(before)
        with self._lock:
            if message.left and message.borrowed:  # else another thread was faster
                message.own(before, copies)

    def _settle(self, own: Message | None = None) -> None:
        """Informs waiting senders. `own` is the message of this call, whose sender is informed directly."""
        if self._finished:
            with self._lock:
                finished, self._finished = self._finished, []
            for message, error in finished:
                assert message.released is not None
                if message is own:
                    message.released(error)
                else:
                    self._flusher.post(message.released, error)
        if self._room:
            self._room = False
            if (owner := self._owner_ref()) is not None:
                owner._has_room(self)

    def _push_through(self, message: Message, patience: float) -> None:
        """Writes the message while the kernel takes some of it, then copies the rest.

        patience: seconds of each wait for the kernel.
        """
        poll = select.poll()
        fd = self.fd
        if fd >= 0:
            poll.register(fd, select.POLLOUT)
        while message.left and fd >= 0 and self.broken is None:
            left = message.left
            if not poll.poll(patience * 1000) and message.left == left:
                break
            self.flush()
        self._own(message)

    def _take_back(self, message: Message, error: BaseException) -> None:
        """Its caller was interrupted: takes it from the queue, or breaks the stream if a part is written."""
        with self._lock:
            if message.begun:
                self._break(interrupted(error))
            elif message.left and message in self._queue:
                self._untake(message)
        self._settle(message)

    def take_unsent(self) -> list[list[OutFrame]]:
        """Removes and returns the messages of which no byte was written to the kernel. They are in new
        memory: their senders may change theirs by the time that they go to another peer."""
        while True:
            with self._lock:
                taken = [m for m in self._queue if not m.begun and not m.control]
                borrowed = [m for m in taken if m.borrowed]
                if not borrowed:
                    back = self.carrier.take_back if self.carrier is not None else lambda frames: frames
                    result = [back(message.frames) for message in taken]
                    self._drop(taken)
                    break
            for message in borrowed:  # its sender still waits, or is not informed yet
                self._own(message)
        self._settle()
        return result

    def drop_unsent(self) -> int:
        """As `take_unsent`, for messages that go to no other peer: returns their number. Copies nothing."""
        with self._lock:
            self._drop(dropped := [m for m in self._queue if not m.begun and not m.control])
        self._settle()
        return len(dropped)

    def _drop(self, taken: list[Message]) -> None:
        self._queue = deque(m for m in self._queue if m.begun or m.control)
        error = self.broken or Broken("taken back before it was sent")
        for message in taken:
            self._leave(message, error)

    # -- called by the flusher

    def _write_pending(self) -> bool:
        """Writes gathered output, or the rest after a full kernel. False: not now, another thread writes."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._armed = False
            if self._has_output and self.broken is None and self._socket is not None:
                self._write()
            else:
                self._end_drain()
        finally:
            self._lock.release()
        self._settle()
        return True

    def _send_credit(self) -> bool:
        """Sends the count of consumed messages. False: not now, the last one is queued, or
        another thread writes."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            able = self.broken is None and self._socket is not None and self.credits
            if able and self._last_credit is not None and self._last_credit.left:
                return False
            # Before the count is read: a message that is consumed meanwhile lists the stream again.
            self._credit_listed = False
            if able and self._credited != self.received:
                self._credited = self.received
                data = CREDIT.pack(Control.CREDIT, self._credited)
                frames: list[OutFrame] = [(CONTROL, 0, None, None, data)]
                chunks = encode(frames, self._socket_type, 0, self.checksum)
                message = self._last_credit = Message(frames, chunks, len(data), None, 0)
                self._queue.append(message)
                self._pending_bytes += message.left
                self._write()
        finally:
            self._lock.release()
        self._settle()
        return True


def interrupted(error: BaseException) -> Broken:
    """The error of a stream whose caller was interrupted inside a frame."""
    # Not chained: the traceback would keep the caller's memory alive.
    return Broken(f"interrupted in the middle of a frame by {error!r}")


def failed(error: OSError) -> Broken:
    """The error of a failed system call, chained."""
    broken = Broken(f"the connection failed: {error}")
    broken.__cause__ = error
    return broken
