"""Large messages that programs send in pieces: they go on while they come.

Nobody is paused for them: a program sends what it was granted, and others are heard meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.delivery.message import Front, Message
from transfer.broker.fronts.native_frames import flat
from transfer.broker.protocols.names import read_topic
from transfer.broker.protocols.native import Head, Op, encode
from transfer.broker.protocols.native_pieces import PIECE, Begin, decode_begin, encode_grant
from transfer.transports.errors import ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.delivery.message import Buffer
    from transfer.transports.core.contract import Frame

#: bytes that may be on their way of one message, and of all messages together
_WINDOW, _TOGETHER = 16 << 20, 64 << 20
#: messages that one program has open at most, and numbers of it that are remembered as refused
_MOST = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """largest: bytes of a message in pieces; whole: of another one, or a piece. stalled: seconds that a
    program may stop in the middle of one."""

    largest: int
    whole: int
    stalled: float


class Arrivals:
    """All messages that come in pieces, of all programs. On the broker's loop."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, counters: Counter[str], limits: Limits
    ) -> None:
        self.hub = hub
        self.loop = loop
        self.counters = counters
        self.limits = limits
        self.open: set[_Arrival] = set()

    @property
    def window(self) -> int:
        """Bytes that may be on their way of each of them, in one piece even."""
        fair = max(PIECE, min(_WINDOW, _TOGETHER // max(1, len(self.open))))
        return min(fair, self.limits.whole)

    def tick(self) -> None:
        """About once a second: programs that stopped in the middle."""
        before = self.loop.time() - self.limits.stalled
        for arrival in [one for one in self.open if one.is_late(before)]:
            self.counters["stalled"] += 1
            arrival.fail(ProtocolError("stalled", "nothing more came of a message in pieces"))


class ProgramArrivals:
    """Those of one program, by their numbers. say: sends it a head. refuse: tells it that what had this
    number is not done."""

    def __init__(
        self, shared: Arrivals, say: Callable[[bytes], None], refuse: Callable[[int, TransferError], None]
    ) -> None:
        self.shared = shared
        self.say = say
        self.refuse = refuse
        #: messages of which all was sent, and that are not kept yet
        self.untold: set[_Arrival] = set()
        self._open: dict[int, _Arrival] = {}
        self._refused: dict[int, None] = {}  # what still comes of them is passed over; the oldest first

    def do(self, head: Head, frames: list[Frame]) -> None:
        """A BEGIN, PIECE or END. Raises ProtocolError, and what the hub raises; nothing is kept then."""
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
                self.pass_over(head.number)
            raise

    def _begin(self, number: int, begin: Begin) -> None:
        self._refused.pop(number, None)
        earlier = self._open.get(number)
        if earlier is not None:
            earlier.drop("another message began with its number")
            self.pass_over(number)
            raise ProtocolError("control", f"message {number} was begun already; neither is kept")
        topic = read_topic(begin.topic)
        largest = self.shared.limits.largest
        if begin.nbytes > largest:
            raise ProtocolError("too_large", f"{begin.nbytes} bytes, where {largest} are the most")
        if len(self._open) >= _MOST:
            raise ProtocolError("control", f"{_MOST} messages in pieces are open; no more are allowed")
        message = Message(topic, (), Front.OWN, begin.parts)
        self._open[number] = _Arrival(self, number, message, begin.nbytes)

    @property
    def is_waiting(self) -> bool:
        """Whether the program waits for an answer, or may."""
        return bool(self._open or self.untold)

    def is_open(self, number: int) -> bool:
        """Whether it was begun, and refused or not."""
        return number in self._open or number in self._refused

    def pass_over(self, number: int) -> None:
        """What still comes of it is no news."""
        self._refused[number] = None
        if len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def forget(self, number: int) -> None:
        """Nothing more comes of it."""
        self._open.pop(number, None)

    def leave(self) -> None:
        """The program has gone."""
        for arrival in list(self._open.values()):
            self.shared.counters["broken_off"] += 1
            arrival.drop("its program has gone")


class _Arrival:
    """One of them; for its passage it is the publisher. It pauses by granting nothing."""

    def __init__(self, program: ProgramArrivals, number: int, message: Message, nbytes: int) -> None:
        self._program = program
        self._shared = program.shared
        self._number = number
        self._nbytes = nbytes
        self._came = self._granted = 0
        self._paused = 0
        self._ended = self._kept = False
        self._heard = self._shared.loop.time()
        self._passage = self._shared.hub.begin(
            message, nbytes, self, self._completed, revoke=self.fail, source=program
        )
        self._shared.open.add(self)
        self._grant()

    def pause(self) -> None:
        """See passage.Publisher."""
        self._paused += 1

    def resume(self) -> None:
        """See passage.Publisher."""
        self._paused -= 1
        self._heard = self._shared.loop.time()
        self._grant()

    def piece(self, parts: list[Buffer]) -> None:
        """The next bytes. Raises ProtocolError."""
        came = self._came + sum(map(len, parts))
        if came > self._granted:
            raise ProtocolError(
                "length", f"{came} bytes of {self._nbytes}, where {self._granted} are granted"
            )
        self._heard = self._shared.loop.time()
        self._came = came
        for data in parts:
            self._passage.piece(data)
        self._grant()

    def end(self) -> None:
        """All of it was sent. Raises ProtocolError."""
        if self._came < self._nbytes:
            self._shared.counters["broken_off"] += 1
            raise ProtocolError("length", f"a message of {self._nbytes} bytes ended behind {self._came}")
        self._forget()
        self._passage.finish()
        self._shared.counters["published"] += 1
        if self._kept:
            self._tell()
        else:
            self._program.untold.add(self)

    def fail(self, error: TransferError) -> None:
        """It is given up, and its program is told so."""
        self.drop(str(error))
        self._program.pass_over(self._number)
        self._program.refuse(self._number, error)

    def drop(self, reason: str) -> None:
        """The rest will not come, or is of no use."""
        self._forget()
        self._passage.abandon(reason)

    def is_late(self, before: float) -> bool:
        """Something of it may come, and nothing has since then."""
        return self._heard < before and (self._granted > self._came or self._came == self._nbytes)

    def _grant(self) -> None:
        """The next bytes may come, if enough of them may for a word."""
        window = self._shared.window
        granted = min(self._nbytes, self._came + window)
        more = granted - self._granted
        if self._paused or self._ended:
            return
        if more >= window // 4 or 0 < more == self._nbytes - self._granted:
            self._granted = granted
            self._program.say(encode_grant(self._number, granted))

    def _completed(self, error: TransferError | None) -> None:
        """What became of it; a topic that keeps nothing says so before it is there."""
        self._program.untold.discard(self)
        if error is not None:
            self._program.refuse(self._number, error)
        elif self._ended:
            self._tell()
        else:
            self._kept = True

    def _tell(self) -> None:
        self._program.say(encode(Op.KEPT, self._number))

    def _forget(self) -> None:
        self._ended = True
        self._shared.open.discard(self)
        self._program.forget(self._number)
