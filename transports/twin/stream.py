"""One connection: what waits to be written, and what arrives."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from transports.errors import Broken, ProtocolError
from transports.twin import fork
from transports.twin.codec import CONTROL, Decoder, encode, normalize
from transports.twin.flusher import Flusher, Released
from transports.twin.pool import Pool
from transports.wire import Control

if TYPE_CHECKING:
    from transports.core_contract import OutFrame, Sink
    from transports.twin.frame import Frame
    from transports.twin.socket import SocketBase

#: bytes that wait for nothing: a burst is gathered up to here
COALESCE = 64 * 1024
#: a message after so long a pause (ns) is no part of a burst
PAUSE_NS = 30_000
#: what one read asks for
READ_AHEAD = 64 * 1024
#: behind the data of a large frame only this much is read along: it has to be copied
READ_BEHIND = 4 * 1024
_NOSIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_CREDIT = struct.Struct("<BQ")
#: buffers in one write; the system allows 1024
MAX_IOV = 512


class _Message:
    """One message in the out-queue."""

    __slots__ = ("begun", "chunks", "control", "frames", "left", "released", "size")

    def __init__(
        self, frames: list[OutFrame], chunks: list[bytes | memoryview], size: int, released: Released | None
    ) -> None:
        self.frames = frames
        self.chunks = chunks
        self.left = sum(map(len, chunks))  # bytes the kernel has not got
        self.size = size  # payload bytes, for the counters
        self.control = bool(frames[0][0] & CONTROL)
        self.begun = False
        self.released = released

    def own(self) -> None:
        """Copies what still points into memory of the user's."""
        if self.begun:
            self.chunks = [bytes(chunk) for chunk in self.chunks]
            self.frames = []  # a message that was begun is never sent again
            return
        copies: dict[int, bytes] = {}
        for position, frame in enumerate(self.frames):
            if type(frame[4]) is not bytes:
                copy = copies[id(frame[4])] = bytes(frame[4])
                self.frames[position] = (*frame[:4], copy)
        self.chunks = [copies.get(id(chunk), chunk) for chunk in self.chunks]


class Stream:
    """Framing, coalescing and reading over one descriptor. See `core_contract.Stream`.

    `_lock` guards the out-queue, `_receiving` the decoder; the order is `_receiving`, `_lock`, the
    flusher's lock. Callbacks are called with none of them held.
    """

    def __init__(
        self,
        fd: int,
        socket_type: int,
        flusher: Flusher,
        pool: Pool,
        *,
        send_high_water: int = 1000,
        send_high_water_bytes: int = 64 << 20,
        max_message: int = 16 << 30,
        checksum: bool = False,
        credits: bool = False,
    ) -> None:
        flusher.check()
        self.peer: Any = None
        self.sent = self.sent_bytes = self.queued = self.queued_bytes = 0
        self.received = self.received_bytes = self.confirmed = self.dropped = 0
        self.blocked_ns = self.waited_ns = self.last_received_ns = self.last_sent_ns = 0
        self.send_high_water = send_high_water
        self.send_high_water_bytes = send_high_water_bytes
        self.checksum = checksum
        self.credits = credits
        self.broken: BaseException | None = None
        self._socket_type = int(socket_type)
        self._flusher = flusher
        self._socket: socket.socket | None = None
        self._closed = False
        self._owner: SocketBase | None = None
        # -- out, under _lock
        self._lock = threading.Lock()
        self._queue: deque[_Message] = deque()
        self._pending_bytes = 0  # frames in the queue, wholly counted
        self._armed = False  # the flusher writes soon
        self._kernel_full = False  # the flusher waits for EPOLLOUT
        self._starved = False  # somebody was refused and wants to hear of room
        self._turn = True  # something was received since the last send: answer at once
        self._finished: list[tuple[_Message, BaseException | None]] = []
        self._room = False
        # -- in, under _receiving
        self._receiving = threading.Lock()
        self._decoder = Decoder(pool, max_message)
        self._behind = bytearray(READ_BEHIND)
        self._failure: BaseException | None = None
        self._credited = 0
        self._credit_listed = False
        # -- subscriptions
        self._prefixes: dict[bytes, int] = {}
        self.subscriptions: tuple[bytes, ...] = ()
        if fd >= 0:
            self.open(fd)

    # -- the descriptor

    @property
    def fd(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def fileno(self) -> int:
        return self.fd

    def open(self, fd: int) -> None:
        """For a stream made with fd -1: takes the descriptor over and writes what was queued."""
        self._flusher.check()
        with self._lock:
            self._socket = socket.socket(fileno=fd)
            self._socket.setblocking(False)
            if self._queue:
                self._write()
        self._settle()
        if self._owner is not None:
            self._owner._opened(self)

    @property
    def max_message(self) -> int:
        return self._decoder.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._decoder.max_message = value

    @property
    def consumed(self) -> int:
        return self.received

    # -- subscriptions of the peer

    def subscribe(self, prefix: bytes) -> None:
        with self._lock:
            self._prefixes[prefix] = self._prefixes.get(prefix, 0) + 1
            self.subscriptions = tuple(self._prefixes)

    def unsubscribe(self, prefix: bytes) -> bool:
        with self._lock:
            count = self._prefixes.get(prefix, 0)
            if count > 1:
                self._prefixes[prefix] = count - 1
            elif count:
                del self._prefixes[prefix]
                self.subscriptions = tuple(self._prefixes)
            return count > 0

    def matches(self, topic: bytes) -> bool:
        return topic.startswith(self.subscriptions)

    # -- sending

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: Released | None = None,
    ) -> bool:
        message = self._take(frames, force, released)
        if message is None:
            return False
        if message.left and not hold:
            self._own(message)
        self._settle(message)
        return True

    def _take(
        self, frames: Sequence[OutFrame], force: bool, released: Released | None
    ) -> _Message | None:
        """Queues the message, still pointing into the caller's memory, and writes if it is time.

        None: full. The caller must `_settle(message)` afterwards, with no lock held.
        """
        normal = normalize(frames)
        size = sum(len(frame[4]) for frame in normal)
        with self._lock:
            self._check()
            if not force and self._crowded(size):
                if not self._kernel_full:
                    self._write()
                    self._check()
                if self._crowded(size):
                    self._starved = True
                    return None
            control = normal[0][0] & CONTROL
            sequence = 0 if control else self.sent + 1
            chunks = encode(normal, self._socket_type, sequence, self.checksum)
            message = _Message(normal, chunks, size, released)
            self._queue.append(message)
            self._pending_bytes += message.left
            if not control:
                self.sent += 1
                self.sent_bytes += size
                self.queued += 1
                self.queued_bytes += size
            if self._socket is not None and not self._kernel_full:
                self._write_or_gather(message)
                if self.broken is not None and message.left and not message.begun:
                    self._untake(message)
                    self._check()
        return message

    def _untake(self, message: _Message) -> None:
        """The connection turned out to be gone with nothing of this message on its way."""
        message.released = None
        self._queue.remove(message)
        self._leave(message, None)
        if not message.control:
            self.sent -= 1
            self.sent_bytes -= message.size

    def _check(self) -> None:
        if self._flusher.generation != fork.generation:
            raise fork.refuse()
        if self.broken is not None:
            raise Broken(f"the connection is gone: {self.broken}") from self.broken

    def _crowded(self, size: int) -> bool:
        """True when a message of this size must wait. An empty queue takes any message."""
        if not self.queued:
            return False
        messages, nbytes = self.send_high_water, self.send_high_water_bytes
        return bool((messages and self.queued >= messages) or (nbytes and self.queued_bytes + size > nbytes))

    def _write_or_gather(self, message: _Message) -> None:
        # The first message after a pause goes out at once. So does an answer: the peer waits for it.
        alone = len(self._queue) == 1
        paused = alone and (self._turn or time.monotonic_ns() - self.last_sent_ns > PAUSE_NS)
        if paused or message.control or self._pending_bytes >= COALESCE:
            self._write()
        elif not self._armed:
            self._armed = True
            self._flusher.arm(self)

    def flush(self) -> bool:
        """Writes what the kernel takes. True when nothing is queued."""
        with self._lock:
            if self._queue and self._socket is not None and self.broken is None:
                self._write()
            empty = not self._queue
        self._settle()
        return empty

    def _write(self) -> None:
        """Writes until the queue is empty or the kernel is full. Under `_lock`, with a descriptor."""
        sock = self._socket
        self._turn = False
        while self._queue and sock is not None and self.broken is None:
            try:
                count = sock.sendmsg(self._next_chunks(), (), _NOSIGNAL)
                self._written(count)
            except BlockingIOError:
                if not self._kernel_full:
                    self._kernel_full = True
                    self._flusher.drain(sock.fileno(), self)
                return
            except OSError as error:
                self._break(_broken(error))
                return
            except BaseException as error:
                # An interrupt between the system's answer and our account of it: how much went
                # out is not known, so nothing may follow.
                self._break(_interrupted(error))
                raise
        self._end_drain()

    def _next_chunks(self) -> list[bytes | memoryview]:
        first = self._queue[0].chunks
        if len(self._queue) == 1:
            return first if len(first) <= MAX_IOV else first[:MAX_IOV]
        chunks: list[bytes | memoryview] = []
        for message in islice(self._queue, MAX_IOV):
            chunks += message.chunks
            if len(chunks) >= MAX_IOV:
                return chunks[:MAX_IOV]
        return chunks

    def _written(self, count: int) -> None:
        self.last_sent_ns = time.monotonic_ns()
        self._pending_bytes -= count
        queue = self._queue
        while count:
            message = queue[0]
            if count < message.left:
                _advance(message, count)
                return
            count -= message.left
            message.left = 0
            queue.popleft()
            self._leave(message, None)

    def _leave(self, message: _Message, error: BaseException | None) -> None:
        """The message is out of the queue."""
        self._pending_bytes -= message.left
        message.left = 0
        message.chunks, message.frames = [], []
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

    def _own(self, message: _Message) -> None:
        """The caller gets its memory back: copies what is not written yet."""
        with self._lock:
            if message.left:
                message.own()

    def _settle(self, own: _Message | None = None) -> None:
        """Tells those who wait. Called with no lock held; `own` is the message of this very call."""
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
            if self._owner is not None:
                self._owner._has_room(self)

    def _push_through(self, message: _Message, patience: float) -> None:
        """Writes the message while the kernel takes some of it, then copies the rest.

        patience: seconds to wait for the kernel each time. An interrupt takes the message back, or
        breaks the stream if a part of it is written already.
        """
        poll = select.poll()
        fd = self.fd
        if fd >= 0:
            poll.register(fd, select.POLLOUT)
        try:
            left = message.left
            while message.left and fd >= 0 and self.broken is None:
                if not poll.poll(patience * 1000) and message.left == left:
                    break
                left = message.left
                self.flush()
        except BaseException as error:
            self._take_back(message, error)
            raise
        self._own(message)

    def _take_back(self, message: _Message, error: BaseException) -> None:
        with self._lock:
            if message.begun:
                self._break(_interrupted(error))
            elif message.left and message in self._queue:
                self._queue.remove(message)
                self._leave(message, error)
        self._settle(message)

    def _write_pending(self) -> None:
        """The flusher's turn: what was gathered, or what the full kernel left."""
        with self._lock:
            self._armed = False
            if self._queue and self.broken is None and self._socket is not None:
                self._write()
            else:
                self._end_drain()
        self._settle()

    def _send_credit(self) -> bool:
        """The flusher's: tells the peer how much was consumed. False: later, output is queued."""
        with self._lock:
            if self.broken is not None or self._socket is None or not self.credits:
                self._credit_listed = False
                return True
            if self._queue:
                return False
            self._credit_listed = False
            if self.received == self._credited:
                return True
            self._credited = self.received
            data = _CREDIT.pack(Control.CREDIT, self._credited)
            frames: list[OutFrame] = [(CONTROL, 0, None, None, data)]
            message = _Message(frames, encode(frames, self._socket_type, 0, self.checksum), len(data), None)
            self._queue.append(message)
            self._pending_bytes += message.left
            self._write()
        self._settle(message)
        return True

    # -- the end

    def _break(self, error: BaseException) -> None:
        """No more is sent. Under `_lock`. What was not begun stays for `take_unsent`."""
        if self.broken is None:
            self.broken = error
        if self._queue and self._queue[0].begun:
            self._leave(self._queue.popleft(), error)
        self._starved = False
        self._room = True  # those who wait for room must look again
        self._end_drain()

    def take_unsent(self) -> list[list[OutFrame]]:
        """Removes and returns the messages of which no byte was given to the kernel."""
        with self._lock:
            taken = [m for m in self._queue if not m.begun and not m.control]
            self._queue = deque(m for m in self._queue if m.begun or m.control)
            result = [m.frames for m in taken]
            error = self.broken or Broken("taken back before it was sent")
            for message in taken:
                self._leave(message, error)
        self._settle()
        return result

    def close(self) -> int:
        """Idempotent, at once, no waiting. How many queued messages were lost."""
        if self._flusher.generation != fork.generation:
            # The parent's locks may be held for ever in this process; its epoll is ours as well.
            if self._socket is not None:
                self._socket.close()
            return 0
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            self._end_drain()
            if self.broken is None:
                self.broken = Broken("this end closed the stream")
            lost = sum(not message.control for message in self._queue)
            unsent = list(self._queue)
            while self._queue:
                self._leave(self._queue.popleft(), self.broken)
        self._flusher.forget(self)
        if self._owner is not None:
            self._owner._closing(self)
        with self._lock:
            self._finished = [item for item in self._finished if item[0] not in unsent]
            if self._socket is not None:
                self._socket.close()
        self._room = True
        self._settle()
        for message in unsent:
            if message.released is not None:
                message.released(self.broken)
        return lost

    # -- receiving

    def receive(self) -> list[Frame] | None:
        """One message or control frame, None: nothing there. Raises ProtocolError, Broken."""
        with self._receiving:
            self._flusher.check()
            if not self._decoder.messages:
                self._pull(None)
            taken = self._next()
        return None if taken is None else taken[0]

    def _next(self) -> tuple[list[Frame], set[int]] | None:
        """The oldest decoded message and which of its frames a sink placed. Raises the end."""
        if not self._decoder.messages:
            if self._failure is not None:
                raise self._failure
            return None
        frames, placed = self._decoder.take()
        if not frames[0].flags & CONTROL:
            self.received += 1
            self.received_bytes += sum(len(frame) for frame in frames)
            if self.credits and not self._credit_listed:
                self._credit_listed = True
                self._flusher.credit(self)
        return frames, placed

    def _pull(self, sink: Sink | None) -> None:
        """Reads until a message is whole or nothing is there. Only what the sink raises gets out."""
        decoder = self._decoder
        while not decoder.messages and self._failure is None:
            body = None if decoder.head is None else decoder.body(sink)
            if not self._read(body):
                return

    def _read(self, body: memoryview | None) -> bool:
        """One read, decoded. False: nothing is there, or the end (see `_failure`)."""
        decoder, sock = self._decoder, self._socket
        if sock is None:
            return False
        try:
            if body is None:
                data = sock.recv(READ_AHEAD)
                count = len(data)
            elif len(body):
                count = sock.recvmsg_into((body, self._behind))[0]
                data = bytes(self._behind[: max(0, count - len(body))])
            else:
                decoder.filled(0)
                return True
            if not count:
                self._end(self._end_of_stream())
                return False
            self.last_received_ns = time.monotonic_ns()
            self._turn = True
            if body is not None:
                decoder.filled(min(count, len(body)))
            if data:
                decoder.feed(data)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(_broken(error))
        except ProtocolError as error:
            self._end(error)
        except BaseException as error:
            # Interrupted between the system's answer and our account of it: better a stream that
            # ends than one that lost some bytes in silence.
            self._end(_interrupted(error))
            raise
        return False

    def _end_of_stream(self) -> BaseException:
        if self._decoder.inside:
            return ProtocolError("truncated", "the connection ended inside a message")
        return Broken("the peer closed the connection")

    def _end(self, error: BaseException) -> None:
        self._failure = error
        with self._lock:
            self._break(error)
        self._settle()


def _advance(message: _Message, count: int) -> None:
    """The kernel took `count` bytes of this message."""
    message.begun = True
    message.left -= count
    chunks = message.chunks
    done = 0
    while count >= len(chunks[done]):
        count -= len(chunks[done])
        done += 1
    del chunks[:done]
    if count:
        chunks[0] = memoryview(chunks[0])[count:]


def _interrupted(error: BaseException) -> Broken:
    # Not chained: the traceback would keep the interrupted caller's memory alive.
    return Broken(f"interrupted in the middle of a frame by {error!r}")


def _broken(error: BaseException) -> Broken:
    broken = Broken(f"the connection failed: {error}")
    broken.__cause__ = error
    return broken
