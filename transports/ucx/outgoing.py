"""The sending half of a UCX stream: queued and pending messages, and the grants of the peer."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from transfer.transports.base import Stream
from transfer.transports.core.buffers import flat_view
from transfer.transports.core.copies import counted, pour, unsent
from transfer.transports.core.wire import HEADER_SIZE, Flag
from transfer.transports.errors import Broken, ProtocolError, TransferError, unraised
from transfer.transports.gpu import is_device_memory
from transfer.transports.sizes import LARGE
from transfer.transports.ucx.driver import UcxEndpoint, failure
from transfer.transports.ucx.packing import FULL, TAKEN, pack
from transfer.transports.ucx.port import UcxPort

if TYPE_CHECKING:
    from transfer.transports.core.contract import OutFrame
    from transfer.transports.handshake.upgrade import Surroundings

Released = Callable[[BaseException | None], None]
_Kept = TypeVar("_Kept")
CONTROL = int(Flag.CONTROL)
#: a control frame on the control connection: take in so many messages, even without a receiver
COLLECT = struct.Struct("<BQ")
COLLECT_KIND = 0xC1
#: the limits of what is sent and not taken in: bytes in batches, and messages of any kind
WINDOW_BYTES = 1 << 20
WINDOW = 64
#: kinds of messages, the lowest bits of a tag
BATCH, PAYLOAD, GRANT = 0, 1, 2


class _Message:
    """One message to send. next: the first frame that was not posted; left: its pending requests."""

    __slots__ = ("frames", "left", "next", "number", "released", "size", "sizes")

    def __init__(
        self, frames: list[OutFrame], sizes: list[int], size: int, number: int, released: Released | None
    ) -> None:
        self.frames = frames
        self.sizes = sizes
        self.size = size
        self.number = number
        self.released = released
        self.next = 0
        self.left = 0


class UcxOutgoing(Stream):
    """The sending methods. `stream.UcxStream` has the rest."""

    def __init__(
        self, port: UcxPort, endpoint: UcxEndpoint, control: Any, theirs: int, around: Surroundings
    ) -> None:
        self.control = control
        self.fd: int = control.fd
        self.wait_fds = port.wait_fds
        self.socket_type = int(around.socket_type)
        self.send_high_water = around.send_high_water
        self.send_high_water_bytes = around.send_high_water_bytes
        self.checksum = around.checksum
        self.last_received_ns = self.last_sent_ns = time.monotonic_ns()
        self._port = port
        self._endpoint = endpoint
        self._pool = around.pool
        self._closed = False
        self._to = [port.worker.tag(theirs | kind) for kind in (BATCH, PAYLOAD, GRANT)]
        self._queue: deque[_Message] = deque()  # not posted, or not wholly
        self._waiting = 0  # bytes in it
        #: requests in posting order, the messages that they carry, the memory that they use
        self._requests: deque[tuple[Any, list[_Message], Any]] = deque()
        #: UCX messages that the peer has not taken in: (bytes of the window, messages that end in it)
        self._ungranted: deque[tuple[int, int]] = deque()
        self._window = 0
        self._posted = 0
        self._collected = 0  # how many the peer was ordered to collect
        self._room_wanted = False
        self._between = False  # a message has left UCX, or a queue, and is not in the next one yet
        # -- what the peer sent, as far as the sending half reports it
        self._taken = 0
        self._reported = 0

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: Released | None = None,
    ) -> int:
        if frames[0][0] & CONTROL:
            return self._send_control(frames)
        sizes = [len(frame[4]) if type(frame[4]) is bytes else nbytes_of(frame[4]) for frame in frames]
        size = sum(sizes)
        with self._port as port, port.lock:
            if self._between:  # another thread's call was interrupted a moment ago
                self.interrupted()
            self._check()
            if not force and self._is_full(size):
                port.advance()
                self._check()
                if self._is_full(size):
                    self._room_wanted = True
                    return 0
            kept = [self._kept(frame, n, hold) for frame, n in zip(frames, sizes, strict=True)]
            number = self.sent + 1
            early = released is not None and (not hold or max(sizes) < LARGE)  # the rest are copies
            message = _Message(kept, sizes, size, number, None if early else released)
            # No call before the last one: a signal handler runs before all of it, or after it.
            self.sent = number
            self.sent_bytes += size
            self.queued += 1
            self.queued_bytes += size
            self._waiting += size + HEADER_SIZE
            self._queue.append(message)
            if early and released is not None:
                port.calls.append(partial(released, None))
            if not self._ungranted or self._waiting >= FULL:
                self._post()
            elif len(self._queue) == 1:
                port.want(self, True)  # it waits for a grant, which a thread must receive
        return number

    def _send_control(self, frames: Sequence[OutFrame]) -> bool:
        self._check()
        self.last_sent_ns = time.monotonic_ns()
        self.control.send(frames, force=True)
        return True

    def _kept(self, frame: OutFrame, size: int, hold: bool) -> OutFrame:
        """The frame with data that does not change: `bytes`, held memory, or a copy."""
        data = frame[4]
        if type(data) is bytes:
            return frame
        if is_device_memory(data):
            return frame  # UCX reads it in place; it is held by reference
        view: Any = flat_view(data)
        if size >= LARGE and not hold:
            lease = self._pool.lease(size)
            pour(memoryview(lease), view)
            view = lease
        elif size < LARGE:
            view = bytes(view)
        return (*frame[:4], view)

    @property
    def full(self) -> bool:
        """Whether a message would not be taken now."""
        return self._is_full(0)

    def flush(self) -> bool:
        """True when the peer has taken in everything. It is ordered to, also without a receiver there."""
        with self._port as port, port.lock:
            if self.broken is not None or self._closed:
                return True
            port.advance()
            if not self._queue and not self._requests and not self._ungranted:
                return True
            if self._posted > self._collected:
                self._collected = self._posted
                order = COLLECT.pack(COLLECT_KIND, self._posted)
                try:
                    self.control.send([(CONTROL, 0, None, None, order)], force=True)
                except Broken as error:
                    self._fail(error)
            port.want(self, True)
            return False

    def take_unsent(self) -> list[list[OutFrame]]:
        return self._leave_unsent(unsent)

    def drop_unsent(self) -> int:
        return self._leave_unsent(counted)

    def _leave_unsent(self, keep: Callable[[Iterable[list[OutFrame]]], _Kept]) -> _Kept:
        with self._port as port, port.lock:
            if self.broken is None:
                return keep(())
            left = [message for message in self._queue if not message.next]
            self._queue.clear()
            self._waiting = 0
            self.queued = self.queued_bytes = 0
            kept = keep(message.frames for message in left)
            for message in left:
                self._release(message, self.broken)
            port.want(self, False)
            return kept

    # -- under the lock ---------------------------------------------------------------------------------

    def _post(self) -> None:
        """Posts what is allowed: full batches, or anything when the peer has taken in all."""
        while self._queue and self._window < WINDOW_BYTES and len(self._ungranted) < WINDOW:
            if self._ungranted and self._waiting < FULL:
                break
            try:
                self._post_batch()
            except TransferError as error:
                self._fail(error)
                return
        self._finish()
        self._port.want(self, bool(self._queue or self._requests))

    def _post_batch(self) -> None:
        """One batch, up to FULL bytes or the first large payload, and that payload."""
        self._between = True
        chunks = [TAKEN.pack(self._taken)]
        size = TAKEN.size
        carried: list[_Message] = []
        ended = 0
        large: tuple[_Message, Any] | None = None
        while self._queue and size < FULL and large is None:
            message = self._queue[0]
            carried.append(message)
            frames = message.frames
            while message.next < len(frames) and large is None:
                index = message.next
                message.next += 1
                n = message.sizes[index]
                more = message.next < len(frames)
                chunk = pack(frames[index], self.socket_type, message.number, more, self.checksum, n)
                chunks.append(chunk)
                size += len(chunk)
                self._waiting -= n + (0 if index else HEADER_SIZE)
                if n >= LARGE:
                    large = message, frames[index][4]
            if message.next == len(frames):
                self._queue.popleft()
                ended += large is None
        self._reported = self._taken
        self._request(b"".join(chunks), BATCH, carried, size, ended)
        if large is not None:
            message, data = large
            self._request(data, PAYLOAD, [message], 0, message.next == len(message.frames))
        self._between = False

    def _request(self, data: Any, kind: int, carried: list[_Message], window: int, ended: int) -> None:
        request = self._endpoint.send(data, self._to[kind])
        for message in carried:
            message.left += 1
        self._requests.append((request, carried, data))
        self._ungranted.append((window, ended))
        self._window += window
        self._posted += 1
        self.last_sent_ns = time.monotonic_ns()

    def _finish(self) -> None:
        """Accounts completed requests, in posting order."""
        requests = self._requests
        while requests and requests[0][0].completed:
            self._between = True
            request, carried, _ = requests.popleft()
            error = failure(request)
            if error is not None:
                self._fail(error)
                return
            for message in carried:
                message.left -= 1
                if not message.left and message.next == len(message.frames):
                    self.queued -= 1
                    self.queued_bytes -= message.size
                    self._release(message, None)
            self._between = False
        if self._room_wanted and not self._is_full(0):
            self._room_wanted = False
            if self.on_writable is not None:
                self._port.calls.append(self.on_writable)

    def _release(self, message: _Message, error: BaseException | None) -> None:
        released, message.released = message.released, None
        message.frames = []  # no reference is left when its owner is informed
        if released is not None:
            self._port.calls.append(partial(released, error))

    def _granted(self, taken: int) -> None:
        """The peer reports the total of messages that it took in. Raises ProtocolError."""
        news = taken - (self._posted - len(self._ungranted))
        if news < 0:
            return  # reported on two ways, and the older one came later
        if news > len(self._ungranted):
            raise ProtocolError("control", f"a grant for {taken} messages of {self._posted}")
        for _ in range(news):
            self._window -= self._ungranted[0][0]  # no call in between: a signal handler runs after both
            self._ungranted.popleft()

    def look(self) -> None:
        """After progress by others; the receiving half implements it."""

    def has_arrived(self) -> bool:
        """Whether a receiver would find a message; the receiving half implements it."""
        return False

    # -- the end ------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """Ends the stream: it might lose a message in silence otherwise."""
        if self._between:
            self._fail(Broken("a signal handler interrupted a call between UCX and us"))

    def _check(self) -> None:
        if self.broken is not None:
            error = Broken("the connection by UCX has ended")
            error.__cause__ = self.broken
            if isinstance(self.broken, ProtocolError):
                raise unraised(self.broken)
            raise error

    def _fail(self, error: BaseException) -> None:
        """Ends sending; messages that were taken in can still be received."""
        if self.broken is not None:
            return
        self.broken = error
        self._port.want(self, False)
        self._port.calls += [call for call in (self.on_readable, self.on_writable) if call is not None]


def nbytes_of(data: Any) -> int:
    return int(data.nbytes) if is_device_memory(data) else memoryview(data).nbytes
