"""The receiving half of a UCX stream: what comes is taken in piece by piece, and the peer is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from transports.core import Frame
from transports.errors import Broken, ProtocolError, TransferError
from transports.twin.codec import chosen
from transports.ucx.driver import Endpoint, failure
from transports.ucx.outgoing import BATCH, GRANT, PAYLOAD, Outgoing, flat
from transports.ucx.packing import LONGEST, TAKEN, Unpacker
from transports.ucx.port import Port
from transports.wire import Flag, SocketType

if TYPE_CHECKING:
    from transports.upgrade import Surroundings

_LZ4 = int(Flag.LZ4)
#: seconds that a payload may take whose receiver does not wait for it any more
_FINISHING = 5.0
#: these answer at once, so that what they took in can be told with the answer
_POLITE = (SocketType.REQ, SocketType.REP)


class Incoming(Outgoing):
    """What receives. See `stream.UcxStream`."""

    def __init__(
        self, port: Port, endpoint: Endpoint, fd: int, own: int, theirs: int, around: Surroundings
    ) -> None:
        super().__init__(port, endpoint, fd, theirs, around)
        self.credits = around.credits
        #: memory of a sink's that the stream uses, or that its last message lies in
        self._sunk: Any = None
        self._from = [port.worker.tag(own | kind) for kind in (BATCH, PAYLOAD, GRANT)]
        self._unpacker = Unpacker(around.max_message, around.pool)
        #: what is being received: the request, its memory
        self._incoming: tuple[Any, Any] | None = None
        self._granting: Any = None  # the last grant's request and bytes
        self._collect = 0  # so many are taken in whoever waits, since the peer is leaving
        self._polite = around.socket_type in _POLITE

    @property
    def max_message(self) -> int:
        return self._unpacker.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._unpacker.max_message = value

    def receive(self, sink: Any = None) -> list[Frame] | None:
        messages = self._unpacker.messages
        with self._port:
            if not messages and not self._closed:
                self._pull(sink)
            self.placed = False
            if messages:
                frames = messages.popleft()
                if self._sunk is not None and frames[0].data is self._sunk:
                    self.placed, self._sunk = True, None
                self.received += 1
                for frame in frames:
                    self.received_bytes += len(frame.data)
                self.consumed = self.received
                if self.credits:
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
                self._port.stepped_for(self)
                self.look()
                continue
            self.look()
            if messages:
                continue
            if self.broken is not None:
                return
            if self._unpacker.awaited is None:  # else the payload's grant tells of its batch too
                self._grant()
            if worker.arm():
                return

    def _take_in(self, sink: Any) -> bool:
        """One UCX message, if one is there: True. What a sink raises leaves it where it is."""
        unpacker = self._unpacker
        if self._incoming is None and not self._begin_incoming(sink):
            return False
        assert self._incoming is not None
        request, memory = self._incoming
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
            self._incoming = self._endpoint.take(found, memory), memory
            return True
        found = worker.find(self._from[PAYLOAD])
        if found is None:
            return False
        if found.length != awaited.length:
            raise ProtocolError("length", f"{found.length} bytes came where {awaited.length} were announced")
        memory = None
        if sink is not None and self._sunk is None and self._unpacker.single and not awaited.flags & _LZ4:
            memory = chosen(sink, awaited.meta, awaited.topic, awaited.length)
        chosen_by_sink = memory is not None
        if memory is None:
            memory = self._pool.lease(awaited.length)
        found = worker.find(self._from[PAYLOAD], remove=True)
        self._incoming = self._endpoint.take(found, memory), memory
        if chosen_by_sink:
            self._sunk = memory
        return True

    def leave_sink(self) -> None:
        """The call whose sink chose memory is over: nothing is written there afterwards."""
        with self._port:
            sunk, incoming = self._sunk, self._incoming
            if sunk is None:
                return
            if incoming is not None and incoming[1] is sunk:
                deadline = time.monotonic() + _FINISHING
                while not incoming[0].completed and time.monotonic() < deadline and self.broken is None:
                    self._port.advance()
                if self._incoming is incoming and not incoming[0].completed:
                    # Only the end of the stream takes the memory from UCX.
                    self._sunk = None
                    self._fail(Broken("a payload did not arrive in time"))
                    raise Broken("a payload did not arrive in time")
            self._sunk = None
            try:
                self._move_out(sunk)
            except TransferError as error:
                self._fail(error)

    def _move_out(self, sunk: Any) -> None:
        """What arrived in a sink's memory, and was not received, lies in ours."""
        for frames in self._unpacker.messages:  # others made progress, and completed it
            if frames[0].data is sunk:
                frames[0].data = self._copied(sunk)
        if self._incoming is not None and self._incoming[1] is sunk and self._incoming[0].completed:
            self._incoming = self._incoming[0], self._copied(sunk)

    def _copied(self, data: Any) -> Any:
        lease = self._pool.lease(len(flat(data)))
        memoryview(lease)[:] = flat(data)
        return lease

    @property
    def sinking(self) -> bool:
        return self._sunk is not None

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

    def _credit_later(self) -> None:
        """The application consumed something: the peer hears of it soon."""

    # -- after progress that others made ----------------------------------------------------------------

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
            elif not self._requests and self._collect <= self._taken:
                self._port.want(self, False)
            if self._collect > self._taken:
                while self._take_in(None):
                    pass
            if self._taken != self._told and not self._polite and self._unpacker.awaited is None:
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
