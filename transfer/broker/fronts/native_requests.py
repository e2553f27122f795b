"""The ROUTER of the native front: programs that publish and consume, and plain REQs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import transfer
from transfer.broker import turns
from transfer.broker.core.topic_names import read_topic
from transfer.broker.fronts.native_backlog import Backlog
from transfer.broker.fronts.native_consumers import NativeConsumer, Program
from transfer.broker.fronts.native_downloads import RangeReader
from transfer.broker.fronts.native_frames import (
    OutPart,
    message_of,
)
from transfer.broker.fronts.native_outbox import Outbox
from transfer.broker.fronts.native_plain import PlainRequests
from transfer.broker.fronts.native_registry import Registrations
from transfer.broker.fronts.native_sockets import LoopSocket
from transfer.broker.fronts.native_uploads import Arrivals, UploadLimits
from transfer.broker.fronts.native_waiting import WaitingPublishes
from transfer.broker.protocols.native import (
    Head,
    Op,
    decode,
    encode,
    encode_words,
)
from transfer.broker.protocols.native_batch import decode_several
from transfer.broker.protocols.native_pieces import IN_PIECES
from transfer.broker.protocols.native_registry import OF_REGISTRY
from transfer.broker.storage.stored_message import BLOB_FROM
from transfer.broker.turns import InTurns
from transfer.transports.errors import ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.hub import Hub
    from transfer.transports.core.contract import Frame

#: commands that may wait for the log
_PUBLISHES = (Op.PUBLISH, Op.PUBLISH_MANY)
#: so many messages of one program or more are published together, not one by one
_RUN = 2
#: messages that are published before other work may get its turn: some milliseconds
_AT_ONCE = 1000
#: consumers that leave in one turn of the loop, when their programs have disconnected
_LEAVE_AT_ONCE = 100
#: commands that may wait for a program which does not read: windows bound deliveries, nothing bounds answers
_MOST_UNREAD = 50_000


class NativeRequests(LoopSocket):
    """The ROUTER: for programs with a DEALER, which speak the protocol, and for plain REQs, which send a
    topic and a payload and get an answer in JSON."""

    kind = transfer.ROUTER

    def __init__(
        self,
        hub: Hub,
        loop: asyncio.AbstractEventLoop,
        context: transfer.Context,
        counters: Counter[str],
        pieces: UploadLimits,
    ) -> None:
        super().__init__(hub, loop, context, counters)
        self.arrivals = Arrivals(hub, loop, counters, pieces)
        self.reader = RangeReader(loop, hub.store, hub.counts, hub.threads)
        self.socket.sndhwm = self.socket.sndhwm_bytes = 0  # windows and `Program.count_sent` bound it
        self._programs: dict[bytes, Program] = {}
        #: consumers whose programs have disconnected: what they held goes to others
        self._leaving: InTurns[NativeConsumer] = InTurns(loop, _LEAVE_AT_ONCE, NativeConsumer.leave)
        self._outbox = Outbox(loop, self.socket, counters)
        self._publishes = WaitingPublishes(hub, loop, self, self._publish_words, self.refuse)
        self._plain = PlainRequests(hub, loop, counters, self.send)
        self._backlog = Backlog(loop, self)
        self.registrations = Registrations(loop, self.send, counters)
        hub.at_end_of_turn(self._outbox.flush)

    def take(self, frames: list[Any]) -> None:
        identity = bytes(frames[0])
        if self._backlog.holds(identity):
            self._backlog.add(identity, partial(self._take_message, identity, frames), frames)
        else:
            self._take_message(identity, frames)

    def _take_message(self, identity: bytes, frames: list[Any]) -> None:
        rest = frames[1:]
        if not rest:
            raise ProtocolError("parts", "a message without parts")
        first = rest[0]
        if type(first) is bytes:  # the envelope of a REQ, with its request's number if it correlates
            self._plain.take((identity, first), rest[2:] if first else rest[1:])
            return
        if not len(first.data):  # the delimiter of a DEALER that acts as a REQ
            self._plain.take((identity, b""), rest[1:])
            return
        head, parts = decode(bytes(first.data)), rest[1:]
        words = [(head, parts)]
        if head.op is Op.SEVERAL:
            words = [(word, parts[its_parts]) for word, its_parts in decode_several(head, len(parts))]
        self._take_words(identity, [part for word in words for part in _in_parts(*word)])

    def _take_words(self, identity: bytes, words: Sequence[tuple[Head, list[Frame]]], begin: int = 0) -> None:
        """Handles commands. Publishes may wait for the disk; other commands do not wait for it. If they take
        long, it continues in later turns of the loop."""
        ends = monotonic() + turns.TURN_SECONDS
        while begin < len(words):
            end, left = begin, _AT_ONCE
            while end < len(words) and left > 0 and self._may_wait(identity, words[end][0]):
                left -= words[end][0].amount
                end += 1
            if end > begin:
                self._publishes.take(identity, words[begin:end])
            else:
                self._try(identity, *words[begin])
            begin = max(end, begin + 1)
            if begin < len(words) and monotonic() >= ends:
                self._backlog.go_on_with(identity, partial(self._take_words, identity, words, begin))
                return

    def _may_wait(self, identity: bytes, head: Head) -> bool:
        """Returns whether a command may wait for the disk. A large message waits behind earlier publishes of
        its program; its pieces come after it has begun, and an END without pieces waits behind it."""
        if head.op in _PUBLISHES:
            return True
        if head.op not in (Op.BEGIN, Op.END) or not self._publishes.holds(identity):
            return False
        return head.op is Op.BEGIN or not self._program(identity).arrivals.is_open(head.number)

    def _publish_words(self, identity: bytes, words: Sequence[tuple[Head, list[Frame]]]) -> None:
        begin = 0
        while begin < len(words):
            count = self._publish_run(identity, words[begin:])
            if not count:
                self._try(identity, *words[begin])
            begin += max(1, count)

    def _publish_run(self, identity: bytes, words: Sequence[tuple[Head, list[Frame]]]) -> int:
        """Publishes the first commands together, if they are messages with consecutive numbers. Returns how
        many. Messages that may be refused are not included."""
        messages: list[Message] = []
        for word, parts in words:
            if word.op is not Op.PUBLISH or not parts or word.number != words[0][0].number + len(messages):
                break
            try:
                message = message_of(read_topic(word.body), parts)
                self._hub.store.topic(message.topic)
            except TransferError:
                break
            if message.nbytes >= BLOB_FROM:
                break
            messages.append(message)
        if len(messages) < _RUN:
            return 0
        self._publish_many(identity, words[0][0].number, messages)
        return len(messages)

    def _try(self, identity: bytes, head: Head, frames: list[Frame]) -> None:
        try:
            self._do(identity, head, frames)
        except TransferError as error:
            self.refuse(identity, head.number, error)
        except Exception as error:  # noqa: BLE001 - of this program only, which gets the refusal
            self._counters["failed"] += 1
            self.refuse(identity, head.number, self.faults.note("a request", error, identity))

    def _do(self, identity: bytes, head: Head, frames: list[Frame]) -> None:
        if head.op is Op.PUBLISH:
            if not frames:
                raise ProtocolError("parts", "PUBLISH without a message")
            self._publish(identity, head.number, message_of(read_topic(head.body), frames))
        elif head.op is Op.PUBLISH_MANY:
            if len(frames) != head.amount or not frames:
                raise ProtocolError("parts", f"{len(frames)} messages came, {head.amount} were announced")
            topic = read_topic(head.body)
            self._publish_many(identity, head.number, [message_of(topic, [frame]) for frame in frames])
        elif head.op in IN_PIECES:
            self._program(identity).arrivals.do(head, frames)
        elif head.op in OF_REGISTRY:
            self.registrations.do(identity, head)
        elif head.op is not Op.ALIVE:
            self._program(identity).do(head)

    def _publish(self, identity: bytes, number: int, message: Message) -> None:
        def on_complete(error: TransferError | None) -> None:
            if error is None:
                self._outbox.kept(identity, number, number + 1)
            else:
                self.refuse(identity, number, error)

        try:
            self._hub.publish(message, on_complete)
            self._counters["published"] += 1
        except TransferError as error:
            self.refuse(identity, number, error)

    def _publish_many(self, identity: bytes, begin: int, messages: list[Message]) -> None:
        end = begin + len(messages)

        def on_complete(error: TransferError | None) -> None:
            if error is None:
                self._outbox.kept(identity, begin, end)
                return
            for number in range(begin, end):
                self.refuse(identity, number, error)

        try:
            self._hub.publish_many(messages, on_complete)
            self._counters["published"] += len(messages)
        except TransferError as error:
            on_complete(error)

    def refuse(self, identity: bytes, number: int, error: TransferError, *, again: bool = False) -> None:
        """Reports to a program that the request with this number was refused. again: nothing was done; it may
        retry."""
        words: dict[str, Any] = {"code": type(error).__name__, "message": str(error)}
        if again:
            words["again"] = True
        self.send(identity, encode(Op.REFUSED, number, encode_words(words)))

    def send(self, identity: bytes, head: bytes, parts: Sequence[OutPart] = ()) -> None:
        """Sends a command to one program, at the end of this turn; dropped if it has disconnected: its
        deliveries are returned then."""
        self._outbox.add(identity, head, parts)

    def delivered(self, count: int) -> None:
        """Counts messages that are sent to consumers."""
        self._counters["delivered"] += count

    def paused(self) -> None:
        """Counts a program that does not read what its consumers are sent."""
        self._counters["paused"] += 1

    def backlog(self, identity: bytes) -> int | None:
        """Returns the bytes that wait for a program. None: it has disconnected."""
        self._outbox.flush_one(identity)
        return None if self.socket.closed else self.socket.waiting_bytes(identity)

    def later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Calls a function after some seconds."""
        self._loop.call_later(seconds, call, *arguments)

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the loop's next turn."""
        self._loop.call_soon(call, *arguments)

    def understands_several(self, identity: bytes) -> None:
        """Allows several commands in one message to this program."""
        self._outbox.able.add(identity)

    def _program(self, identity: bytes) -> Program:
        program = self._programs.get(identity)
        if program is None:
            program = self._programs[identity] = Program(self, self._hub, identity)
        return program

    def tick(self) -> None:
        """Disconnects programs that do not read, and removes those that have disconnected."""
        self.arrivals.tick()
        held = [identity for identity, program in self._programs.items() if program.arrivals.is_waiting]
        self._publishes.tick(held)
        there = self.socket.routes()
        for identity, waiting in there.items():
            if waiting > _MOST_UNREAD:
                self._counters["closed_slow"] += 1
                self.socket.expel(identity, f"it has not read {waiting} messages")
        for identity in [identity for identity in self._programs if identity not in there]:
            self._leaving.add(self._programs.pop(identity).leave())
            self._outbox.able.discard(identity)
        self.registrations.tick(there)

    def close(self) -> None:
        self._leaving.clear()
        self._backlog.close()
        self.registrations.close()
        self._publishes.close()
        self._plain.close()
        super().close()
        self.reader.close()


def _in_parts(head: Head, frames: list[Frame]) -> Iterator[tuple[Head, list[Frame]]]:
    """Splits a command that publishes very many messages into several."""
    if head.op is not Op.PUBLISH_MANY or head.amount <= _AT_ONCE or len(frames) != head.amount:
        yield head, frames
        return
    for begin in range(0, len(frames), _AT_ONCE):
        some = frames[begin : begin + _AT_ONCE]
        yield head._replace(number=head.number + begin, amount=len(some)), some
