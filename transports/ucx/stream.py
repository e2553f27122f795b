"""Frames to one peer by UCX messages: the foreign stream of the ucx transport.

Small frames wait for company while a message is on its way that the peer has not taken in; large
payloads travel in messages of their own, from the sender's memory into the receiver's. The peer
tells what it took in by grants, and no more than a window is ever on its way: UCX itself would take
in whatever comes. Control frames travel on the TCP connection beside it, which also tells the
peer's end: UCX may notice a dead peer late or never.
"""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transports.base import Stream
from transports.core import Frame
from transports.errors import Broken, ForkedError, ProtocolError, TransferError
from transports.twin.codec import chosen
from transports.ucx.driver import Endpoint, failure
from transports.ucx.packing import APART, FULL, LONGEST, TAKEN, Unpacker, pack
from transports.ucx.port import Port
from transports.wire import HEADER_SIZE, Control, Flag, SocketType

if TYPE_CHECKING:
    from transports.core_contract import OutFrame
    from transports.upgrade import Surroundings

_Released = Callable[[BaseException | None], None]
_CONTROL, _CRC, _LZ4 = int(Flag.CONTROL), int(Flag.CRC), int(Flag.LZ4)
_CREDIT = struct.Struct("<BQ")
#: a control frame of our own on the connection beside: take in so many messages, whoever waits
_COLLECT = struct.Struct("<BQ")
_COLLECT_KIND = 0xC1
#: what may be on its way and not taken in: bytes in batches, and messages of any kind
WINDOW_BYTES = 1 << 20
WINDOW = 64
#: nanoseconds between two credits
_CREDIT_NS = 20_000_000
#: seconds that a closing stream gives its requests to end, and a payload that nobody waits for any more
_PATIENCE = 0.5
_FINISHING = 5.0
#: kinds of messages, the lowest bits of a tag
BATCH, PAYLOAD, GRANT = 0, 1, 2
#: these answer at once, so that what they took in can be told with the answer
_POLITE = (SocketType.REQ, SocketType.REP)


class _Message:
    """One message to send. next: the first frame that was not posted; left: its requests under way."""

    __slots__ = ("frames", "left", "next", "number", "released", "size", "sizes")

    def __init__(
        self, frames: list[OutFrame], sizes: list[int], size: int, number: int, released: _Released | None
    ) -> None:
        self.frames = frames
        self.sizes = sizes
        self.size = size
        self.number = number
        self.released = released
        self.next = 0
        self.left = 0


class UcxStream(Stream):
    """See `core_contract.Stream`. Thread-safe by the port's lock. It owns `endpoint` and `fd`.

    own, theirs: the owner's part of the tags that we receive by, and that the peer does.
    `receive` takes a sink too, which is asked for large payloads that are a message by themselves;
    `placed` says whether the last message lies where the sink said.
    """

    def __init__(
        self, port: Port, endpoint: Endpoint, fd: int, own: int, theirs: int, around: Surroundings
    ) -> None:
        self.beside = around.core.Stream(fd, int(around.socket_type), around.flusher, around.pool)
        self.fd = fd
        self.wait_fds = port.wait_fds
        self.socket_type = int(around.socket_type)
        self.send_high_water = around.send_high_water
        self.send_high_water_bytes = around.send_high_water_bytes
        self.credits = around.credits
        self.checksum = around.checksum
        self.last_received_ns = self.last_sent_ns = time.monotonic_ns()
        self.placed = False
        self._port = port
        self._endpoint = endpoint
        self._own = own
        self._pool = around.pool
        self._reactor = around.reactor
        self._closed = False
        self._subscriptions: Counter[bytes] = Counter()
        # -- sending
        make = port.worker.tag
        self._to = [make(theirs | kind) for kind in (BATCH, PAYLOAD, GRANT)]
        self._queue: deque[_Message] = deque()  # not posted, or not wholly
        self._waiting = 0  # bytes in it
        #: requests in the order of their posting, the messages that they carry, the memory they use
        self._requests: deque[tuple[Any, list[_Message], Any]] = deque()
        #: UCX messages that the peer has not taken in: (bytes of the window, messages that end in it)
        self._ungranted: deque[tuple[int, int]] = deque()
        self._window = 0
        self._posted = 0
        self._collected = 0  # how many the peer was told to collect
        self._room_wanted = False
        # -- receiving
        self._from = [make(own | kind) for kind in (BATCH, PAYLOAD, GRANT)]
        self._unpacker = Unpacker(around.max_message, around.pool)
        #: what is being received: the request, its memory, whether a sink chose that
        self._incoming: tuple[Any, Any, bool] | None = None
        self._taken = 0
        self._told = 0
        self._granting: Any = None  # the last grant's request and bytes
        self._collect = 0
        self._polite = around.socket_type in _POLITE
        self._credit_told = 0
        self._credit_timer: Any = None
        with port:
            port.join(self)

    # -- plain facts -----------------------------------------------------------------------------------

    device = "ucx"

    def fileno(self) -> int:
        """The connection beside it."""
        return self.fd

    @property
    def max_message(self) -> int:
        return self._unpacker.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._unpacker.max_message = value

    @property
    def full(self) -> bool:
        """Whether the next message would not be taken."""
        return self._is_full(0)

    # -- sending ---------------------------------------------------------------------------------------

    def send(
        self,
        frames: Sequence[OutFrame],
        *,
        force: bool = False,
        hold: bool = False,
        released: _Released | None = None,
    ) -> bool:
        if frames[0][0] & _CONTROL:
            return self._send_control(frames)
        sizes = [len(frame[4]) if type(frame[4]) is bytes else _nbytes(frame[4]) for frame in frames]
        size = sum(sizes)
        with self._port as port:
            self._check()
            if not force and self._is_full(size):
                port.advance()
                self._check()
                if self._is_full(size):
                    self._room_wanted = True
                    return False
            kept = [self._kept(frame, n, hold) for frame, n in zip(frames, sizes, strict=True)]
            self.sent += 1
            self.sent_bytes += size
            self.queued += 1
            self.queued_bytes += size
            if released is not None and (not hold or max(sizes) < APART):
                port.calls.append(lambda: released(None))  # what stays here are copies
                released = None
            self._queue.append(_Message(kept, sizes, size, self.sent, released))
            self._waiting += size + HEADER_SIZE
            if not self._ungranted or self._waiting >= FULL:
                self._post()
                self._finish()
            elif len(self._queue) == 1:
                port.want(self, True)  # it waits for a grant, which somebody must see
        return True

    def _send_control(self, frames: Sequence[OutFrame]) -> bool:
        self._check()
        self.last_sent_ns = time.monotonic_ns()
        self.beside.send(frames, force=True)
        return True

    def _kept(self, frame: OutFrame, size: int, hold: bool) -> OutFrame:
        """The frame with data that stays as it is: `bytes`, memory that is held, or a copy."""
        data = frame[4]
        if type(data) is bytes:
            return frame
        if _is_on_device(data):
            return frame  # UCX reads it from there; it is held by reference
        view = flat(data)
        if size >= APART and not hold:
            lease = self._pool.lease(size)
            memoryview(lease)[:] = view
            view = lease
        elif size < APART:
            view = bytes(view)
        return (*frame[:4], view)

    def _is_full(self, size: int) -> bool:
        if not self.queued:
            return False  # one message is always taken, however large
        if 0 < self.send_high_water <= self.queued:
            return True
        return 0 < self.send_high_water_bytes < self.queued_bytes + size

    def flush(self) -> bool:
        """True when the peer has taken in everything. It is asked to, also if nobody receives there."""
        with self._port as port:
            if self.broken is not None or self._closed:
                return True
            port.advance()
            if not self._queue and not self._requests and not self._ungranted:
                return True
            if self._posted > self._collected:
                self._collected = self._posted
                order = _COLLECT.pack(_COLLECT_KIND, self._posted)
                try:
                    self.beside.send([(_CONTROL, 0, None, None, order)], force=True)
                except Broken as error:
                    self._fail(error)
            port.want(self, True)
            return False

    def take_unsent(self) -> list[list[OutFrame]]:
        with self._port as port:
            if self.broken is None:
                return []
            unsent = [message for message in self._queue if not message.next]
            self._queue.clear()
            self._waiting = 0
            self.queued = self.queued_bytes = 0
            for message in unsent:
                self._release(message, self.broken)
            port.want(self, False)
            return [message.frames for message in unsent]

    # -- sending, under the lock -----------------------------------------------------------------------

    def _post(self) -> None:
        """Gives UCX what may go: full batches, or anything when the peer has taken in all."""
        while self._queue and self._window < WINDOW_BYTES and len(self._ungranted) < WINDOW:
            if self._ungranted and self._waiting < FULL:
                break
            try:
                self._post_batch()
            except TransferError as error:
                self._fail(error)
                return
        self._port.want(self, bool(self._queue or self._requests))

    def _post_batch(self) -> None:
        """One batch, up to FULL bytes or the first large payload, and that payload."""
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
                if n >= APART:
                    large = message, frames[index][4]
            if message.next == len(frames):
                self._queue.popleft()
                ended += large is None
        self._told = self._taken
        self._request(b"".join(chunks), BATCH, carried, size, ended)
        if large is not None:
            message, data = large
            self._request(data, PAYLOAD, [message], 0, message.next == len(message.frames))

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
        """Books requests that are over, in the order of their posting."""
        requests = self._requests
        while requests and requests[0][0].completed:
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
        if self._room_wanted and not self._is_full(0):
            self._room_wanted = False
            if self.on_writable is not None:
                self._port.calls.append(self.on_writable)

    def _release(self, message: _Message, error: BaseException | None) -> None:
        released, message.released = message.released, None
        if released is not None:
            self._port.calls.append(lambda: released(error))

    def _granted(self, taken: int) -> None:
        """The peer says how many messages it took in of all. Raises ProtocolError."""
        news = taken - (self._posted - len(self._ungranted))
        if news < 0:
            return  # told on two ways, and the older came later
        if news > len(self._ungranted):
            raise ProtocolError("control", f"a grant for {taken} messages of {self._posted}")
        for _ in range(news):
            self._window -= self._ungranted.popleft()[0]

    def look(self) -> None:
        """After progress that others made: what is over, what was granted, what may go now."""
        if self.broken is not None:
            return
        try:
            self._finish()
            if self._ungranted:
                while (found := self._port.worker.find(self._from[GRANT], remove=True)) is not None:
                    self._take_grant(found)
            if self._queue:
                self._post()
                self._finish()
            elif not self._requests and self._collect <= self._taken:
                self._port.want(self, False)
            if self._collect > self._taken:
                while self._take_in(None):
                    pass
            if self._taken != self._told and not self._polite:
                self._grant()
        except TransferError as error:
            self._fail(error)

    def _take_grant(self, found: Any) -> None:
        if found.length != TAKEN.size:
            self._port.worker.discard(found)
            raise ProtocolError("control", f"a grant of {found.length} bytes")
        data = bytearray(TAKEN.size)
        request = self._endpoint.take(found, data)
        if not request.completed or failure(request) is not None:
            raise Broken("a grant could not be received")
        self._granted(TAKEN.unpack(data)[0])

    # -- receiving -------------------------------------------------------------------------------------

    def receive(self, sink: Any = None) -> list[Frame] | None:
        messages = self._unpacker.messages
        with self._port:
            if not messages and not self._closed:
                self.placed = False
                self._pull(sink)
            if messages:
                frames = messages.popleft()
                self.received += 1
                for frame in frames:
                    self.received_bytes += len(frame.data)
                self.consumed = self.received
                if self.credits and self._credit_timer is None:
                    self._credit_later()
                return frames
            self._check()
            return None

    def _pull(self, sink: Any) -> None:
        """Takes in until there is a message, or nothing more comes; then the worker is armed."""
        worker = self._port.worker
        messages = self._unpacker.messages
        while True:
            try:
                while self._take_in(sink):
                    if messages:
                        break
            except (ProtocolError, Broken) as error:
                self._fail(error)
                return
            if messages:
                if self._taken != self._told and not self._polite:
                    self._grant()
                return
            if worker.step():
                self.look()
                continue
            self.look()
            if messages:
                continue
            if self.broken is not None:
                return
            self._grant()
            if worker.arm():
                return

    def _take_in(self, sink: Any) -> bool:
        """One UCX message, if one is there: True. What a sink raises leaves it where it is."""
        unpacker = self._unpacker
        if self._incoming is None and not self._begin_incoming(sink):
            return False
        assert self._incoming is not None
        request, memory, placed = self._incoming
        if not request.completed:
            return False
        self._incoming = None
        error = failure(request)
        if error is not None:
            raise error
        self._taken += 1
        self.last_received_ns = time.monotonic_ns()
        if unpacker.awaited is not None:
            unpacker.fill(memory)
            self.placed = placed
        else:
            self._granted(unpacker.feed(memory))
        return True

    def _begin_incoming(self, sink: Any) -> bool:
        """Begins to receive the next message, when its length is what it must be."""
        worker = self._port.worker
        awaited = self._unpacker.awaited
        if awaited is None:
            found = worker.find(self._from[BATCH], remove=True)
            if found is None:
                return False
            if not TAKEN.size <= found.length <= LONGEST:
                worker.discard(found)
                raise ProtocolError("length", f"a batch of {found.length} bytes")
            memory: Any = bytearray(found.length)
            self._incoming = self._endpoint.take(found, memory), memory, False
            return True
        found = worker.find(self._from[PAYLOAD])
        if found is None:
            return False
        if found.length != awaited.length:
            raise ProtocolError("length", f"{found.length} bytes came where {awaited.length} were announced")
        memory = None
        if sink is not None and self._unpacker.single and not awaited.flags & _LZ4:
            memory = chosen(sink, awaited.meta, awaited.topic, awaited.length)
        placed = memory is not None
        if memory is None:
            memory = self._pool.lease(awaited.length)
        found = worker.find(self._from[PAYLOAD], remove=True)
        self._incoming = self._endpoint.take(found, memory), memory, placed
        return True

    def leave_sink(self) -> None:
        """The call whose sink chose memory is over: nothing is written there afterwards."""
        with self._port:
            incoming = self._incoming
            if incoming is None or not incoming[2]:
                return
            deadline = time.monotonic() + _FINISHING
            while not incoming[0].completed and time.monotonic() < deadline and self.broken is None:
                self._port.advance()
            if incoming[0].completed and self.broken is None:
                lease = self._pool.lease(len(flat(incoming[1])))
                memoryview(lease)[:] = flat(incoming[1])
                self._incoming = incoming[0], lease, False
            else:
                self._fail(Broken("a payload did not arrive in time"))

    def has_arrived(self) -> bool:
        """Whether a receiver should look; for those who made progress in its place."""
        if self._unpacker.messages or self.broken is not None:
            return True
        if self._incoming is not None:
            return bool(self._incoming[0].completed)
        kind = BATCH if self._unpacker.awaited is None else PAYLOAD
        return self._port.worker.find(self._from[kind]) is not None

    def _grant(self) -> None:
        """Tells the peer what was taken in. One at a time is under way."""
        if self._taken == self._told or (self._granting is not None and not self._granting[0].completed):
            return
        data = TAKEN.pack(self._taken)
        try:
            self._granting = self._endpoint.send(data, self._to[GRANT]), data
        except TransferError as error:
            self._fail(error)
            return
        self._told = self._taken

    # -- beside ----------------------------------------------------------------------------------------

    def beside_ready(self) -> list[Frame]:
        frames: list[Frame] = []
        try:
            while (message := self.beside.receive()) is not None:
                frame = message[0]
                if not frame.flags & _CONTROL:
                    raise ProtocolError("flags", "a message on the connection beside UCX")
                self.last_received_ns = time.monotonic_ns()
                data = bytes(frame.data)
                if data[:1] == bytes([_COLLECT_KIND]):
                    self._told_to_collect(data)
                else:
                    frames.append(frame)
        except (Broken, ProtocolError) as error:
            if frames and isinstance(error, Broken):
                return frames  # the end is found again at the next call
            with self._port:
                self._fail(error)
            raise
        return frames

    def _told_to_collect(self, data: bytes) -> None:
        """The peer is leaving: what it sent is taken in also if nobody receives here now."""
        if len(data) != _COLLECT.size:
            raise ProtocolError("control", f"an order to collect of {len(data)} bytes")
        with self._port as port:
            self._collect = _COLLECT.unpack(data)[1]
            port.want(self, True)
            port.advance()

    def _credit_later(self) -> None:
        if self._reactor is None:
            self._tell_credit()
        else:
            self._credit_timer = self._reactor.call_later(_CREDIT_NS / 1e9, self._tell_credit)

    def _tell_credit(self) -> None:
        """How much the application consumed, for the peer's trackers."""
        self._credit_timer = None
        if self._closed or self.broken is not None or self._credit_told == self.consumed:
            return
        self._credit_told = self.consumed
        credit = _CREDIT.pack(Control.CREDIT, self._credit_told)
        try:
            self.beside.send([(_CONTROL, 0, None, None, credit)], force=True)
        except Broken:
            return  # whoever watches the connection beside finds its end

    # -- the end ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.broken is not None:
            error = Broken("the connection by UCX has ended")
            error.__cause__ = self.broken
            if isinstance(self.broken, ProtocolError):
                raise self.broken
            raise error

    def _fail(self, error: BaseException) -> None:
        """Nothing goes any more; what was taken in can still be received."""
        if self.broken is not None:
            return
        self.broken = error
        self._port.want(self, False)
        self._port.calls += [call for call in (self.on_readable, self.on_writable) if call is not None]

    def close(self) -> int:
        """Ends at once: how many messages the peer has not taken in. Idempotent."""
        if self._closed:
            return 0
        if self._port.is_forked:
            self._closed = True
            return 0
        if self.credits and self.broken is None:
            self._tell_credit()
        with self._port as port:
            if self._closed:
                return 0
            self._closed = True
            lost = len(self._queue) + sum(ended for _, ended in self._ungranted)
            if self.broken is None:
                self.broken = Broken("this end closed the stream")
            if self._credit_timer is not None:
                self._credit_timer.cancel()
            self._end()
            port.leave(self, self._own, self._over())
        self.beside.close()
        return lost

    def _end(self) -> None:
        try:
            self._endpoint.close()
        except TransferError as error:
            self.broken = error
        unfinished = {id(m): m for _, carried, _ in self._requests for m in carried}
        unfinished.update((id(m), m) for m in self._queue)
        for message in unfinished.values():
            self._release(message, Broken("the stream was closed before this message was sent"))
        self._queue.clear()
        self._waiting = self.queued = self.queued_bytes = 0
        self._ungranted.clear()
        self._unpacker.messages.clear()
        self._unpacker.awaited = None

    def _over(self) -> list[tuple[Any, Any]]:
        """Lets the cancelled requests end; those that do not, with the memory that they use."""
        open_: list[tuple[Any, Any]] = [(request, data) for request, _, data in self._requests]
        if self._incoming is not None:
            open_.append(self._incoming[:2])
        if self._granting is not None:
            open_.append(self._granting)
        self._requests.clear()
        self._incoming = self._granting = None
        deadline = time.monotonic() + _PATIENCE
        while (open_ := [pair for pair in open_ if not pair[0].completed]) and time.monotonic() < deadline:
            self._port.worker.step()
        if self._port.streams:
            self._port.rearm()
        return open_

    # -- subscriptions of the peer ---------------------------------------------------------------------

    @property
    def subscriptions(self) -> tuple[bytes, ...]:
        with self._port:
            return tuple(self._subscriptions)

    def subscribe(self, prefix: bytes) -> None:
        with self._port:
            self._subscriptions[bytes(prefix)] += 1

    def unsubscribe(self, prefix: bytes) -> bool:
        with self._port:
            if not self._subscriptions[prefix]:
                del self._subscriptions[prefix]
                return False
            self._subscriptions[prefix] -= 1
            if not self._subscriptions[prefix]:
                del self._subscriptions[prefix]
            return True

    def matches(self, topic: bytes) -> bool:
        with self._port:
            return any(topic.startswith(prefix) for prefix in self._subscriptions)


def flat(data: Any) -> memoryview:
    """A view of the bytes of anything contiguous."""
    view = memoryview(data)
    if not view.nbytes:
        return memoryview(b"")  # an empty view of several dimensions cannot be cast
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _is_on_device(data: Any) -> bool:
    return hasattr(data, "__cuda_array_interface__")


def _nbytes(data: Any) -> int:
    return int(data.nbytes) if _is_on_device(data) else memoryview(data).nbytes
