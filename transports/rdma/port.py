"""The queues of one socket on one device: completion queue with its channel, shared receive queue, eager
buffers. No thread takes another socket's completions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from transfer.transports.errors import Broken, TransferError
from transfer.transports.handshake.upgrade import Declined
from transfer.transports.rdma.domain import Domain, Domains
from transfer.transports.rdma.driver import SUCCESS, Completion, QueuePair
from transfer.transports.rdma.eager import BUFFER
from transfer.transports.rdma.memory import MemoryBlock
from transfer.transports.rdma.rendezvous import WINDOW

if TYPE_CHECKING:
    from transfer.transports.rdma.incoming import RdmaIncoming
    from transfer.transports.rdma.stream import VerbsStream

#: eager receive buffers that a peer is granted, and eager send buffers, for each peer
GRANT = 32
#: peers of one port; a socket with more opens another port
PEERS = 64
PORTS = 16
#: receive buffers beyond the granted ones: a broken connection may use one up
SPARE = 64
#: requests of one queue pair
DEPTH = GRANT + WINDOW
_BATCH = 16
#: Linux' CLOCK_MONOTONIC_COARSE, a few milliseconds coarse: precise enough for the time of the last news
COARSE = 6

# A work request's number: its kind (upper half), and its count (lower half).
RECEIVE, SEND, READ = 1 << 32, 2 << 32, 3 << 32
_LOWER = (1 << 32) - 1


class GivenUp(NamedTuple):
    """Why rdma is not used with a host for now. when: time.monotonic()."""

    when: float
    reason: str
    text: str
    hint: str


class RdmaPort:
    """`lock` guards all state of it and of its streams. Owned by `Ports`.

    Methods with an underscore, and those marked so, are called under the lock. Callbacks that have to run
    outside of it are put into `after`; the thread that releases the lock calls them.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.lock = threading.Lock()
        self.after: deque[Callable[[], None]] = deque()
        limits = domain.device.limits
        self.peers = min(
            PEERS, (limits.shared_requests - SPARE) // GRANT, (limits.completions - SPARE) // (GRANT + DEPTH)
        )
        #: the stream whose `receive` runs at this moment: it needs no wake-up
        self.reader: VerbsStream | None = None
        self._streams: dict[int, VerbsStream] = {}
        self._buffers: list[tuple[memoryview, object]] = []  # filled by the device, as prepared
        #: streams with reports to send after the present completions
        self.dirty: list[RdmaIncoming] = []
        #: queue pairs in use: of streams, and of unfinished upgrades
        self.reserved = 0
        self._posted = 0
        self._armed = False
        #: a completion came since the queue was armed, so that an event has come or will come
        self._notified = False
        self._closed = False
        self._queue = domain.device.completion_queue(self.peers * (GRANT + DEPTH) + SPARE)
        try:
            self._shared = domain.device.shared_receive_queue(self.peers * GRANT + SPARE)
        except BaseException:
            self._queue.close()
            raise
        self._slabs: list[MemoryBlock] = []
        #: polled, and not yet dispatched
        self._found: deque[Completion] = deque()
        #: why no stream can use it any more
        self.failed: TransferError | None = domain.lost
        domain.on_lost[self] = self._lose

    @property
    def fd(self) -> int:
        """Readable when something may have completed; -1 when closed."""
        return self._queue.fd

    @property
    def full(self) -> bool:
        return self.reserved >= self.peers or self.failed is not None

    def run_after(self) -> None:
        """Calls the callbacks, with no lock held."""
        after = self.after
        while after:
            try:
                callback = after.popleft()
            except IndexError:  # another thread took the last one
                return
            callback()

    # -- under the lock

    def queue_pair(self) -> QueuePair:
        """A new queue pair, with its share of receive buffers posted."""
        self._post_for(self.reserved + 1)
        pair = self.domain.device.queue_pair(self._queue, self._shared, DEPTH)
        self.reserved += 1
        return pair

    def join(self, stream: VerbsStream) -> None:
        self._streams[stream.number] = stream
        self.sleep()

    def leave(self, stream: VerbsStream) -> None:
        """The stream's queue pair gets nothing any more: its entries in the queue are dropped, and their
        buffers posted again."""
        if self._streams.get(stream.number) is stream:
            self.progress()
            del self._streams[stream.number]
            self.reserved -= 1

    def progress(self) -> int:
        """Takes all present completions, of any stream; returns their number.

        It may be called within a completion: that call goes on with the rest of the batch, in order.
        """
        total = 0
        found = self._found
        more = True
        while found or more:
            while found:
                total += 1
                self._dispatch(found.popleft())
            if more:
                more = self._poll()
        if total and self._armed:
            self._notified = True
        while self.dirty:
            self.dirty.pop().send_done()
        return total

    def _poll(self) -> bool:
        """Whether there may be more."""
        if self.failed is not None:
            return False
        try:
            self._found += self._queue.poll(_BATCH)
        except Broken as error:
            self._fail(error)
            return False
        return len(self._found) == _BATCH

    def _fail(self, error: TransferError) -> None:
        """The queues work no more: ends all streams."""
        if self.failed is None:
            self.failed = error  # first: a stream that ends polls, too
            for stream in list(self._streams.values()):
                stream.end(error)

    def _arm(self) -> None:
        try:
            self._queue.arm()
        except Broken as error:
            self._fail(error)

    def sleep(self) -> None:
        """No completion is there: from now on `fd` reports them. Takes those that came in between."""
        if not self._armed:
            self._arm()
            self._armed = True
        elif not self._notified or not self.arm_again():
            return  # an event is still to come
        self.progress()

    def arm_again(self) -> bool:
        """Takes the event of past completions and arms the queue again. False: the event is still on its way.
        A caller checks the queue before it sleeps: earlier completions raise no event after this call."""
        if not self._queue.take_event():
            return False
        self._notified = False
        self._arm()
        return True

    def _dispatch(self, one: Completion) -> None:
        kind, which = one.wr_id & ~_LOWER, one.wr_id & _LOWER
        stream = self._streams.get(one.number)
        if kind != RECEIVE:
            if stream is not None and stream.alive:
                stream.completed(kind, which, one.status)
            return
        buffer, prepared = self._buffers[which]
        if stream is not None and stream.alive and one.status == SUCCESS:
            stream.arrived(buffer[: one.length])
        try:
            self._shared.post(prepared)
        except Broken as error:
            self._fail(error)

    def _post_for(self, peers: int) -> None:
        """Posts the receive buffers for this many peers."""
        while self._posted < peers * GRANT + SPARE:
            count = min(GRANT, peers * GRANT + SPARE - self._posted)
            block = self.domain.received.take(count * BUFFER)
            self._slabs.append(block)
            for at in range(0, count * BUFFER, BUFFER):
                prepared = self._shared.prepare(
                    RECEIVE | len(self._buffers), block.address + at, BUFFER, block.lkey
                )
                self._buffers.append((block.view[at : at + BUFFER], prepared))
                self._shared.post(prepared)
                self._posted += 1

    # -- by the owner

    def _lose(self, error: TransferError) -> None:
        """The device is gone. Called without the lock."""
        with self.lock:
            self._fail(error)
        self.run_after()

    def close(self) -> None:
        """Closes shared receive queue, completion queue, channel. Its streams end. Idempotent."""
        self.domain.on_lost.pop(self, None)
        with self.lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self._shared.close()
            self._queue.close()
            self._buffers.clear()
            for block in self._slabs:
                self.domain.received.give_back(block)


class Ports:
    """The ports of one socket: more are opened for more peers, up to a limit. Closed with the socket."""

    def __init__(self, domains: Domains) -> None:
        self._domains = domains
        self._lock = threading.Lock()
        self._ports: list[RdmaPort] = []
        #: hosts with which rdma fails for now, so that a connection is not made again and again
        self.given_up: dict[str, GivenUp] = {}

    def with_room(self) -> RdmaPort:
        """A port with room for one more peer. Raises DeviceError, RegistrationError,
        Declined("rdma-full")."""
        with self._lock:
            for port in self._ports:
                if not port.full:
                    return port
            if len(self._ports) >= PORTS:
                raise Declined("rdma-full", f"this socket has {PORTS * PEERS} peers by rdma already")
            port = RdmaPort(self._domains.get())
            self._ports.append(port)
            return port

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            ports, self._ports = self._ports, []
        for port in ports:
            port.close()
