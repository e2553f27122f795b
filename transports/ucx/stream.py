"""Frames to one peer by UCX messages: the foreign stream of the ucx transport.

Small frames are gathered while a sent message is not taken in by the peer; large payloads travel in separate
messages, from the sender's memory into the receiver's. The peer reports by grants what it took in, and no
more than a window is ever pending: UCX itself would take in any amount. Control frames travel on the TCP
connection, which also reports the peer's end: UCX may detect a dead peer late or never.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from transfer.transports.core import Frame
from transfer.transports.core.wire import Control
from transfer.transports.errors import Broken, ProtocolError, TransferError
from transfer.transports.ucx.driver import UcxEndpoint
from transfer.transports.ucx.incoming import UcxIncoming
from transfer.transports.ucx.outgoing import COLLECT, COLLECT_KIND, CONTROL
from transfer.transports.ucx.port import UcxPort

if TYPE_CHECKING:
    from transfer.transports.handshake.upgrade import Surroundings

_CREDIT = struct.Struct("<BQ")
#: seconds between two credits
_CREDIT_SECONDS = 0.02
#: seconds for the pending requests of a closing stream
_PATIENCE = 0.5


class UcxStream(UcxIncoming):
    """See core/contract.pyi, Stream. Thread-safe by the port's lock. It owns `endpoint` and `fd`.

    own, theirs: the owner's part of the tags that this side receives by, and that the peer does.
    Its sink is called for large payloads that are a whole message.
    """

    device = "ucx"
    takes_sink = True

    def __init__(
        self, port: UcxPort, endpoint: UcxEndpoint, control: Any, own: int, theirs: int, around: Surroundings
    ) -> None:
        super().__init__(port, endpoint, control, own, theirs, around)
        self._own = own
        self._reactor = around.reactor
        self._subscriptions: Counter[bytes] = Counter()
        self._credit_reported = 0
        self._credit_timer: Any = None
        with port, port.lock:
            port.join(self)

    @property
    def takes_device_memory(self) -> bool:
        """UCX was built for CUDA; neither side computes checksums of payloads."""
        return self._port.has_cuda and not self.checksum

    def fileno(self) -> int:
        """The control connection."""
        return self.fd

    # -- the control connection ------------------------------------------------------------------------

    def control_ready(self) -> list[Frame]:
        frames: list[Frame] = []
        try:
            while (message := self.control.receive()) is not None:
                frame = message[0]
                if not frame.flags & CONTROL:
                    raise ProtocolError("flags", "a message on the control connection")
                self.last_received_ns = time.monotonic_ns()
                data = bytes(frame.data)
                if data[:1] == bytes([COLLECT_KIND]):
                    self._collect_ordered(data)
                else:
                    frames.append(frame)
        except (Broken, ProtocolError) as error:
            if frames and isinstance(error, Broken):
                return frames  # the end is found again at the next call
            with self._port, self._port.lock:
                self._fail(error)
            raise
        return frames

    def _collect_ordered(self, data: bytes) -> None:
        """The peer is leaving: its messages are taken in also if no thread receives here now."""
        if len(data) != COLLECT.size:
            raise ProtocolError("control", f"an order to collect of {len(data)} bytes")
        with self._port as port, port.lock:
            self._collect = COLLECT.unpack(data)[1]
            port.want(self, True)
            port.advance()

    def _credit_later(self) -> None:
        if self._credit_timer is None:
            self._credit_timer = self._reactor.call_later(_CREDIT_SECONDS, self._report_credit)

    def _report_credit(self) -> None:
        """Reports how much the application consumed, for the peer's trackers."""
        self._credit_timer = None
        if self._closed or self.broken is not None or self._credit_reported == self.consumed:
            return
        self._credit_reported = self.consumed
        credit = _CREDIT.pack(Control.CREDIT, self._credit_reported)
        try:
            self.control.send([(CONTROL, 0, None, None, credit)], force=True)
        except Broken:
            return  # the reactor, which watches the control connection, finds its end

    # -- the end ---------------------------------------------------------------------------------------

    def close(self) -> int:
        """Ends at once; returns how many messages the peer has not taken in. Idempotent."""
        if self._closed:
            return 0
        if self._port.is_forked:
            self._closed = True
            return 0
        if self.credits and self.broken is None:
            self._report_credit()
        with self._port as port, port.lock:
            if self._closed:
                return 0
            self.look()  # so that the peer's last reports are not lost
            self._closed = True
            lost = len(self._queue) + sum(ended for _, ended in self._ungranted)
            if self.broken is None:
                self.broken = Broken("this end closed the stream")
            if self._credit_timer is not None:
                self._credit_timer.cancel()
            self._end()
            port.leave(self, self._own, self._over())
        self.control.close()
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
        self._unpacker.clear()

    def _over(self) -> list[tuple[Any, Any]]:
        """Lets the cancelled requests end; those that do not, with the memory that they use."""
        open_: list[tuple[Any, Any]] = [(request, data) for request, _, data in self._requests]
        open_ += [(arrival.request, arrival.memory) for arrival in self._arriving]
        if self._batch is not None:
            open_.append(self._batch)
        if self._granting is not None:
            open_.append(self._granting)
        self._requests.clear()
        self._arriving.clear()
        self._batch = self._granting = None
        deadline = time.monotonic() + _PATIENCE
        while (open_ := [pair for pair in open_ if not pair[0].completed]) and time.monotonic() < deadline:
            self._port.worker.step()
        self._port.due = bool(self._port.streams)
        return open_

    # -- subscriptions of the peer ---------------------------------------------------------------------

    @property
    def subscriptions(self) -> tuple[bytes, ...]:
        with self._port, self._port.lock:
            return tuple(self._subscriptions)

    def subscribe(self, prefix: bytes) -> None:
        with self._port, self._port.lock:
            self._subscriptions[bytes(prefix)] += 1

    def unsubscribe(self, prefix: bytes) -> bool:
        with self._port, self._port.lock:
            if not self._subscriptions[prefix]:
                del self._subscriptions[prefix]
                return False
            self._subscriptions[prefix] -= 1
            if not self._subscriptions[prefix]:
                del self._subscriptions[prefix]
            return True

    def matches(self, topic: bytes) -> bool:
        with self._port, self._port.lock:
            return any(topic.startswith(prefix) for prefix in self._subscriptions)
