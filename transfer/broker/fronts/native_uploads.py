"""Large messages that programs send in pieces, and the broker forwards as they come.

The socket is not paused for them: a program sends only what it was granted, and other programs go on
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.core.message import Front, Message
from transfer.broker.core.topic_names import read_topic
from transfer.broker.fronts.native_frames import flat
from transfer.broker.protocols.native import Head, Op, encode
from transfer.broker.protocols.native_pieces import PIECE, Begin, decode_begin, encode_grant
from transfer.transports.errors import ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.hub import Hub
    from transfer.transports.core.contract import Frame

#: bytes of one message that may be in transfer, and of all messages together
_WINDOW, _TOGETHER = 16 << 20, 64 << 20
#: limit on a program's open messages, and on its refused numbers that are remembered
_MOST = 64


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits on messages in pieces. largest: bytes of one; whole: of another message, or of a piece.
    stall_timeout: seconds that a program may stop in the middle of one."""

    largest: int
    whole: int
    stall_timeout: float


class Arrivals:
    """The messages in pieces of all programs. On the broker's loop."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, counters: Counter[str], limits: UploadLimits
    ) -> None:
        self.hub = hub
        self.loop = loop
        self.counters = counters
        self.limits = limits
        self.open: set[_Arrival] = set()

    @property
    def window(self) -> int:
        """The bytes of each message that may be in transfer, even in one piece."""
        fair = max(PIECE, min(_WINDOW, _TOGETHER // max(1, len(self.open))))
        return min(fair, self.limits.whole)

    def tick(self) -> None:
        """Fails the messages of programs that stopped in the middle. Called about once a second."""
        before = self.loop.time() - self.limits.stall_timeout
        for arrival in [one for one in self.open if one.is_late(before)]:
            self.counters["stalled"] += 1
            arrival.fail(ProtocolError("stalled", "the program sent no more pieces of a message"))


class ProgramArrivals:
    """The messages in pieces of one program, by their numbers. send: sends it a head. refuse: reports that a
    request was refused."""

    def __init__(
        self, shared: Arrivals, send: Callable[[bytes], None], refuse: Callable[[int, TransferError], None]
    ) -> None:
        self.shared = shared
        self.send = send
        self.refuse = refuse
        #: messages that came whole and are not kept yet
        self.unreported: set[_Arrival] = set()
        self._open: dict[int, _Arrival] = {}
        self._refused: dict[int, None] = {}  # later pieces of these are ignored; the oldest first

    def do(self, head: Head, frames: list[Frame]) -> None:
        """Handles BEGIN, PIECE or END. Raises ProtocolError, and what the hub raises; nothing is kept
        then."""
        if head.op is Op.BEGIN:
            self._begin(head.number, decode_begin(head))
            return
        arrival = self._open.get(head.number)
        if arrival is None:
            if head.number not in self._refused:
                raise ProtocolError("control", f"no BEGIN opened message {head.number}")
            if head.op is Op.END:
                del self._refused[head.number]
            return
        try:
            if head.op is Op.END:
                arrival.end()
            else:
                arrival.piece([flat(frame.data) for frame in frames])
        except TransferError as error:
            arrival.drop(str(error))
            if head.op is not Op.END:
                self.ignore(head.number)
            raise

    def _begin(self, number: int, begin: Begin) -> None:
        self._refused.pop(number, None)
        earlier = self._open.get(number)
        if earlier is not None:
            earlier.drop("another message began with its number")
            self.ignore(number)
            raise ProtocolError("control", f"message {number} was begun before; neither is kept")
        topic = read_topic(begin.topic)
        largest = self.shared.limits.largest
        if begin.nbytes > largest:
            raise ProtocolError("too_large", f"{begin.nbytes} bytes exceed the limit of {largest}")
        if len(self._open) >= _MOST:
            raise ProtocolError("control", f"{_MOST} messages in pieces are open; no more are allowed")
        message = Message(topic, (), Front.NATIVE, begin.parts)
        self._open[number] = _Arrival(self, number, message, begin.nbytes)

    @property
    def is_waiting(self) -> bool:
        """Whether the program waits for an answer, or may."""
        return bool(self._open or self.unreported)

    def is_open(self, number: int) -> bool:
        """Returns whether the message was begun, even if it was refused."""
        return number in self._open or number in self._refused

    def ignore(self, number: int) -> None:
        """Ignores later pieces of a message."""
        self._refused[number] = None
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def forget(self, number: int) -> None:
        """Forgets a message that has ended."""
        self._open.pop(number, None)

    def leave(self) -> None:
        """Drops all open messages: the program has disconnected."""
        for arrival in list(self._open.values()):
            self.shared.counters["broken_off"] += 1
            arrival.drop("its program has disconnected")


class _Arrival:
    """One message in pieces, the publisher of its StreamingPublish. It pauses by granting nothing."""

    def __init__(self, program: ProgramArrivals, number: int, message: Message, nbytes: int) -> None:
        self._program = program
        self._shared = program.shared
        self._number = number
        self._nbytes = nbytes
        self._came = self._granted = 0
        self._paused = 0
        self._ended = self._kept = False
        self._active_at = self._shared.loop.time()
        self._upload = self._shared.hub.begin(
            message, nbytes, self, self._completed, revoke=self.fail, source=program
        )
        self._shared.open.add(self)
        self._grant()

    def pause(self) -> None:
        """See streaming_publish.Publisher."""
        self._paused += 1

    def resume(self) -> None:
        """See streaming_publish.Publisher."""
        self._paused -= 1
        self._active_at = self._shared.loop.time()
        self._grant()

    def piece(self, parts: list[Buffer]) -> None:
        """Handles the next bytes. Raises ProtocolError."""
        came = self._came + sum(map(len, parts))
        if came > self._granted:
            raise ProtocolError(
                "length", f"{came} bytes of {self._nbytes} came, but only {self._granted} are granted"
            )
        self._active_at = self._shared.loop.time()
        self._came = came
        for data in parts:
            self._upload.piece(data)
        self._grant()

    def end(self) -> None:
        """Ends the message: all of it was sent. Raises ProtocolError."""
        if self._came < self._nbytes:
            self._shared.counters["broken_off"] += 1
            raise ProtocolError("length", f"a message of {self._nbytes} bytes ended after {self._came}")
        self._forget()
        self._upload.finish()
        self._shared.counters["published"] += 1
        if self._kept:
            self._report_kept()
        else:
            self._program.unreported.add(self)

    def fail(self, error: TransferError) -> None:
        """Gives the message up, and reports the reason to its program."""
        self.drop(str(error))
        self._program.ignore(self._number)
        self._program.refuse(self._number, error)

    def drop(self, reason: str) -> None:
        """Drops the message: the rest will not come, or is useless."""
        self._forget()
        self._upload.abandon(reason)

    def is_late(self, before: float) -> bool:
        """Returns whether more should have come, and nothing has since then."""
        return self._active_at < before and (self._granted > self._came or self._came == self._nbytes)

    def _grant(self) -> None:
        """Grants the next bytes, if they are enough for a message of their own."""
        window = self._shared.window
        granted = min(self._nbytes, self._came + window)
        more = granted - self._granted
        if self._paused or self._ended:
            return
        if more >= window // 4 or 0 < more == self._nbytes - self._granted:
            self._granted = granted
            self._program.send(encode_grant(self._number, granted))

    def _completed(self, error: TransferError | None) -> None:
        """Handles the result; a topic that keeps nothing reports it before the message is whole."""
        self._program.unreported.discard(self)
        if error is not None:
            self._program.refuse(self._number, error)
        elif self._ended:
            self._report_kept()
        else:
            self._kept = True

    def _report_kept(self) -> None:
        self._program.send(encode(Op.KEPT, self._number))

    def _forget(self) -> None:
        self._ended = True
        self._shared.open.discard(self)
        self._program.forget(self._number)
