"""The receiving half of a UCX stream: takes messages in piece by piece, and reports them to the peer."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from transfer.transports.core import Frame
from transfer.transports.core.buffers import flat_view
from transfer.transports.core.copies import pour
from transfer.transports.core.frames import chosen
from transfer.transports.core.wire import Flag, SocketType
from transfer.transports.errors import Broken, ProtocolError, TransferError
from transfer.transports.gpu import is_payload
from transfer.transports.ucx.driver import UcxEndpoint, failure
from transfer.transports.ucx.outgoing import BATCH, GRANT, PAYLOAD, UcxOutgoing
from transfer.transports.ucx.packing import LONGEST, TAKEN, Awaited, Unpacker
from transfer.transports.ucx.port import UcxPort

if TYPE_CHECKING:
    from transfer.transports.core.contract import Sink
    from transfer.transports.handshake.upgrade import Surroundings

logger = logging.getLogger("transfer")

_LZ4, _CRC = int(Flag.LZ4), int(Flag.CRC)
#: seconds that a payload may take after its receiver has stopped waiting
_FINISHING = 5.0
#: bytes of payloads that are received before the application receives the message
AHEAD = 4 << 20
#: UCX messages that are taken in before a report to the peer, while payloads are pending
_REPORT_AFTER = 8
#: these answer at once, so that the answer can carry the report
_POLITE = (SocketType.REQ, SocketType.REP)


class _Arrival:
    """A pending payload of `nbytes` for `memory`. behind: batches taken in after it."""

    __slots__ = ("behind", "memory", "nbytes", "request")

    def __init__(self, request: Any, memory: Any, nbytes: int) -> None:
        self.request = request
        self.nbytes = nbytes
        self.memory = memory
        self.behind = 0


def _not_received(nbytes: int, error: TransferError) -> Broken:
    if not isinstance(error, Broken):  # the peer is there, and will not know why it was left
        logger.warning("a payload of %d bytes cannot be received, and the connection ends: %s", nbytes, error)
    return Broken(f"UCX could not receive a payload of {nbytes} bytes")


class UcxIncoming(UcxOutgoing):
    """The receiving methods. See `stream.UcxStream`."""

    def __init__(
        self, port: UcxPort, endpoint: UcxEndpoint, control: Any, own: int, theirs: int, around: Surroundings
    ) -> None:
        super().__init__(port, endpoint, control, theirs, around)
        self.credits = around.credits
        #: how the peer's last payload for a GPU was received, and why so
        self.gpu_received = ""
        #: a sink's memory that the stream uses, or that its last message lies in
        self._sunk: Any = None
        self._from = [port.worker.tag(own | kind) for kind in (BATCH, PAYLOAD, GRANT)]
        self._unpacker = Unpacker(around.max_message, around.pool)
        #: a pending batch: the request, its memory
        self._batch: tuple[Any, Any] | None = None
        #: pending payloads in order, and their bytes
        self._arriving: deque[_Arrival] = deque()
        self._arriving_bytes = 0
        self._granting: Any = None  # the last grant's request and bytes
        self._collect = 0  # so many are taken in without a receiver, since the peer is leaving
        self._polite = around.socket_type in _POLITE

    @property
    def max_message(self) -> int:
        return self._unpacker.max_message

    @max_message.setter
    def max_message(self, value: int) -> None:
        self._unpacker.max_message = value

    def take(self, sink: Sink | None = None) -> list[Frame] | None:
        messages = self._unpacker.messages
        with self._port, self._port.lock:
            if self.handed is not None:
                return self.handed
            if not messages and not self._closed:
                self._pull(sink)
            self.placed = False
            if not messages:
                self._check()
                return None
            frames = messages[0]
            if self._sunk is not None and frames[0].data is self._sunk:
                self.placed, self._sunk = True, None
            self.handed = frames
            messages.popleft()
            return frames

    def consume(self, frames: list[Frame]) -> None:
        with self._port, self._port.lock:
            super().consume(frames)
            if self.credits:
                self._credit_later()

    def _pull(self, sink: Any) -> None:
        """Takes in until there is a message, or no more arrives; then arms the worker."""
        worker = self._port.worker
        messages = self._unpacker.messages
        if self._between:
            self.interrupted()
            return
        while True:
            try:
                while self._take_in(sink):
                    if messages:
                        break
                while sink is None and len(messages) < 2 and self._arriving and self._ahead(None):
                    continue
            except (ProtocolError, Broken) as error:
                self._fail(error)
                return
            if messages:
                if not self._polite:
                    self._grant_soon()
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
            self._grant_soon()
            if worker.arm():
                return

    def _take_in(self, sink: Any) -> bool:
        """One step towards the next message: True if there was one. A sink that raises changes nothing."""
        arriving = self._arriving
        if arriving and arriving[0].request.completed:
            self._between = True
            self._arrived(arriving.popleft())
            self._between = False
            return True
        return self._ahead(sink)

    def _arrived(self, arrival: _Arrival) -> None:
        """A payload has arrived. Raises its UCX error, or ProtocolError."""
        error = failure(arrival.request)
        if error is not None:
            raise _not_received(arrival.nbytes, error) from error
        self._taken += 1 + arrival.behind
        self._arriving_bytes -= arrival.nbytes
        self.last_received_ns = time.monotonic_ns()
        if self._port.gpus is not None and is_payload(arrival.memory):
            self._port.gpus.arrived(arrival.memory)
        self._unpacker.fill(arrival.memory)

    def _ahead(self, sink: Any) -> bool:
        """Takes in a batch, or starts to receive a payload: True. Behind a pending payload only up to the
        free memory, and nothing that may belong into a sink's memory."""
        if self._unpacker.awaited is not None:
            return self._begin_payload(sink)
        if self._arriving and (sink is not None or self._arriving_bytes >= AHEAD):
            return False
        if self._batch is None and not self._begin_batch():
            return False
        assert self._batch is not None
        request, memory = self._batch
        if not request.completed:
            return False
        self._between = True
        self._batch = None
        error = failure(request)
        if error is not None:
            raise error
        if self._arriving:
            self._arriving[-1].behind += 1  # reported in the order in which it was sent
        else:
            self._taken += 1
        self.last_received_ns = time.monotonic_ns()
        taken = self._unpacker.feed(memory)
        self._between = False
        self._granted(taken)
        return True

    def _begin_batch(self) -> bool:
        worker = self._port.worker
        self._between = True
        found = worker.find(self._from[BATCH], remove=True)
        if found is None:
            self._between = False
            return False
        if not TAKEN.size <= found.length <= LONGEST:
            worker.discard(found)
            raise ProtocolError("length", f"a batch of {found.length} bytes")
        memory = bytearray(found.length)
        self._batch = self._endpoint.take(found, memory), memory
        self._between = False
        return True

    def _begin_payload(self, sink: Any) -> bool:
        """Starts to receive the awaited payload, if its length is correct."""
        worker, unpacker = self._port.worker, self._unpacker
        awaited = unpacker.awaited
        assert awaited is not None
        if self._arriving and (sink is not None or self._arriving_bytes + awaited.length > AHEAD):
            return False
        found = worker.find(self._from[PAYLOAD])
        if found is None:
            return False
        if found.length != awaited.length:
            raise ProtocolError("length", f"{found.length} bytes came where {awaited.length} were announced")
        memory = None if sink is None else self._on_gpu(sink, awaited)
        if (
            memory is None
            and sink is not None
            and self._sunk is None
            and unpacker.single
            and not awaited.flags & _LZ4
        ):
            memory = chosen(sink, awaited.meta, awaited.topic, awaited.length)
        chosen_by_sink = memory is not None and not is_payload(memory)
        if memory is None:
            memory = self._pool.lease(awaited.length)
        self._between = True
        found = worker.find(self._from[PAYLOAD], remove=True)
        try:
            request = self._endpoint.take(found, memory)
        except TransferError as error:
            raise _not_received(awaited.length, error) from error
        self._arriving.append(_Arrival(request, memory, awaited.length))
        self._arriving_bytes += awaited.length
        unpacker.begin()
        if chosen_by_sink:
            self._sunk = memory
        self._between = False
        return True

    def _on_gpu(self, sink: Any, awaited: Awaited) -> Any:
        """Memory on the GPU where the receiver wants this payload, or None."""
        gpu_for = getattr(sink, "gpu_for", None)
        gpus = self._port.gpus
        if gpus is None or gpu_for is None or awaited.flags & (_LZ4 | _CRC):
            return None
        index = gpu_for(awaited.meta)
        if index is None:
            return None
        made, self.gpu_received = gpus.room(index, awaited.length, self._pool)
        return None if made is None else made[0]

    def leave_sink(self) -> None:
        """The call whose sink chose memory has ended: nothing is written there afterwards."""
        with self._port, self._port.lock:
            if self.handed is not None and self.placed:  # the call was interrupted before it had the message
                self.handed[0].data = self._copied(self.handed[0].data)
                self.placed = False
            sunk = self._sunk
            if sunk is None:
                return
            arrival = self._arriving[0] if self._arriving else None
            if arrival is not None and arrival.memory is sunk:
                deadline = time.monotonic() + _FINISHING
                while not arrival.request.completed and time.monotonic() < deadline and self.broken is None:
                    self._port.advance()
                if not arrival.request.completed and self._arriving and self._arriving[0] is arrival:
                    # Only the end of the stream makes UCX release the memory.
                    self._sunk = None
                    self._fail(Broken("a payload did not arrive in time"))
                    raise Broken("a payload did not arrive in time")
            self._sunk = None
            try:
                self._move_out(sunk)
            except TransferError as error:
                self._fail(error)

    def _move_out(self, sunk: Any) -> None:
        """Moves what arrived in a sink's memory, and was not received, to the stream's own."""
        for frames in self._unpacker.messages:  # other threads made progress, and completed it
            if frames[0].data is sunk:
                frames[0].data = self._copied(sunk)
        first = self._arriving[0] if self._arriving else None
        if first is not None and first.memory is sunk and first.request.completed:
            first.memory = self._copied(sunk)

    def _copied(self, data: Any) -> Any:
        view = flat_view(data)
        lease = self._pool.lease(len(view))
        pour(memoryview(lease), view)
        return lease

    @property
    def sinking(self) -> bool:
        return self._sunk is not None

    def has_arrived(self) -> bool:
        """Whether a receiver should check; for threads that made progress instead of it."""
        if self._unpacker.messages or self.broken is not None:
            return True
        if self._arriving:
            return bool(self._arriving[0].request.completed)
        if self._batch is not None:
            return bool(self._batch[0].completed)
        kind = BATCH if self._unpacker.awaited is None else PAYLOAD
        return self._port.worker.find(self._from[kind]) is not None

    def _grant_soon(self) -> None:
        """Reports to the peer what was taken in; less often while payloads are pending: they do not wait
        for it."""
        if self._taken - self._reported >= _REPORT_AFTER or not (self._arriving or self._unpacker.awaited):
            self._grant()

    def _grant(self) -> None:
        """Reports to the peer what was taken in. One report is pending at a time."""
        if self._taken == self._reported or (self._granting is not None and not self._granting[0].completed):
            return
        data = TAKEN.pack(self._taken)
        try:
            self._granting = self._endpoint.send(data, self._to[GRANT]), data
        except TransferError as error:
            self._fail(error)
            return
        self._reported = self._taken

    def _credit_later(self) -> None:
        """The application has consumed messages: the peer gets a report soon."""

    # -- after progress by others -----------------------------------------------------------------------

    def look(self) -> None:
        """After progress by others: handles completed requests and grants, and sends what they allow."""
        if self._between:  # a call of another thread was interrupted
            self.interrupted()
        if self.broken is not None:
            return
        try:
            self._finish()
            if self._ungranted:
                self._between = True
                while (found := self._port.worker.find(self._from[GRANT], remove=True)) is not None:
                    self._take_grant(found)
                self._between = False
            if self._queue:
                self._post()
            elif not self._requests and self._collect <= self._taken:
                self._port.want(self, False)
            if self._collect > self._taken:
                while self._take_in(None):
                    pass
            if self._taken != self._reported and not self._polite:
                self._grant_soon()
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
