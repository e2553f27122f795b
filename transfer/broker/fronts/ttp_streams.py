"""Streams of TTP: META opens one, CHUNKs carry its bytes, EOF ends it, and to the broker it is one message.

A stream whose metadata say how many bytes it has (`nbytes`) passes through as it comes. Any other is
gathered, within a limit, and published at its end: nobody sees a part of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.fronts.ttp_frames import Meta, cut, headers_of, stream_head
from transfer.broker.fronts.ttp_sinks import SKIPPED, Receipt, Sink
from transfer.broker.message import Buffer, Front, Message
from transfer.protocols.ttp import EOF, MOST_NUMBER, WANTED, Header
from transports.errors import ProtocolError

if TYPE_CHECKING:
    from transfer.broker.hub import Hub
    from transfer.broker.line import Line
    from transfer.broker.passage import Passage
    from transfer.broker.pipes import Poured

#: streams that declare fewer bytes are gathered all the same: their chunks stay as they were cut
PASSED_FROM = 64 << 10
#: what the broker keeps of a chunk beside its data: many empty ones are not for nothing
_CHUNK_COST = 16


@dataclass(slots=True)
class Opening:
    """What a META frame says, and the receipt for the stream if its publisher wants one."""

    topic: str
    flags: int
    stream_id: int
    meta: bytes
    receipt: Receipt | None


class Shared:
    """What all connections of the front share. used: stream ids that subscribers see at the moment.

    gathered: bytes that streams have gathered together; most: how many they may.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.gathered = 0
        self.used: set[int] = set()
        self._next = MOST_NUMBER

    def take(self, wanted: int) -> int:
        """The stream id as subscribers see it: one from the upper end, if two publishers chose the same."""
        number = wanted
        while number in self.used:
            number, self._next = self._next, self._next - 1
        self.used.add(number)
        return number


class Stream(ABC):
    """One open stream of one publisher, and the sink of its chunks' data.

    number: its id as subscribers see it. heard: when its last chunk began.
    """

    def __init__(self, shared: Shared, opening: Opening, now: float) -> None:
        self.opening = opening
        self.heard = now
        self.number = shared.take(opening.stream_id)
        self._shared = shared
        self._last = bool(opening.flags & EOF)
        self.ended = False

    @abstractmethod
    def chunk(self, header: Header, meta: bytes) -> None:
        """A CHUNK begins; its data come by `piece`, then `finish`. Raises ProtocolError if it cannot be."""

    @property
    def pours(self) -> bool:
        """See Sink."""
        return False

    @abstractmethod
    def piece(self, data: Buffer) -> None:
        """The next bytes."""

    def poured(self, data: Poured) -> None:
        """The next bytes, in a pipe."""
        self.piece(data.memory())

    def finish(self) -> None:
        """The end of a chunk, which may be that of the stream. Raises what the hub raises."""
        if self._last:
            self._end()
            self.complete()
            if self.opening.receipt is not None:
                self.opening.receipt.whole()

    def abandon(self, reason: str) -> None:
        """The stream will not be finished. Idempotent."""
        if not self.ended:
            self._end()
            self.drop(reason)
            if self.opening.receipt is not None:
                self.opening.receipt.cancel()

    @abstractmethod
    def complete(self) -> None:
        """All bytes are there."""

    @abstractmethod
    def drop(self, reason: str) -> None:
        """No more bytes will come."""

    def _end(self) -> None:
        self.ended = True
        self._shared.used.discard(self.number)


class Gathered(Stream):
    """A stream that becomes a message when it is complete. most: bytes that it may have."""

    def __init__(self, hub: Hub, shared: Shared, opening: Opening, most: int, now: float) -> None:
        super().__init__(shared, opening, now)
        self._hub = hub
        self._most = most
        self._data = bytearray()
        self._cuts = bytearray()
        self._cost = 0

    def chunk(self, header: Header, meta: bytes) -> None:
        cost = header.data_size + len(meta) + _CHUNK_COST
        if self._cost + cost > self._most:
            raise ProtocolError(
                "too_large",
                f"a stream of more than {self._most} bytes",
                hint='say "nbytes" in the metadata of META',
            )
        if self._shared.gathered + cost > self._shared.most:
            raise ProtocolError("no_memory", "too many bytes of unfinished streams are held already")
        self._cost += cost
        self._shared.gathered += cost
        self._cuts += cut(header.flags, header.data_size, meta)
        self._last = bool(header.flags & EOF)

    def piece(self, data: Buffer) -> None:
        self._data += data

    def complete(self) -> None:
        opening = self.opening
        head = stream_head(opening.flags, self.number, opening.meta, self._cuts)
        payload = memoryview(self._data).toreadonly()
        self._hub.publish(
            Message(opening.topic, (payload,), Front.TTP, head, headers_of(opening.meta)), opening.receipt
        )

    def drop(self, reason: str) -> None:
        """Nobody has seen any of it."""
        self._data, self._cuts = bytearray(), bytearray()

    def _end(self) -> None:
        super()._end()
        self._shared.gathered -= self._cost


class Passed(Stream):
    """A stream of `nbytes` bytes that go on as they come; chunks may be cut anew on the way."""

    def __init__(
        self, hub: Hub, shared: Shared, opening: Opening, nbytes: int, publisher: Line, now: float
    ) -> None:
        super().__init__(shared, opening, now)
        head = stream_head(opening.flags, self.number, opening.meta)
        message = Message(opening.topic, (), Front.TTP, head, headers_of(opening.meta))
        self._left = nbytes
        try:
            self._passage: Passage = hub.begin(message, nbytes, publisher, opening.receipt)
        except BaseException:
            self._end()
            raise

    def chunk(self, header: Header, meta: bytes) -> None:
        last = bool(header.flags & EOF)
        if meta or header.flags & ~(EOF | WANTED):
            raise ProtocolError("flags", 'a chunk of a stream with "nbytes" has only data, and EOF')
        if header.data_size > self._left or (last and header.data_size < self._left):
            raise ProtocolError(
                "length", f"{self._left} bytes of the stream are missing, not {header.data_size}"
            )
        self._last = last

    def piece(self, data: Buffer) -> None:
        self._left -= len(data)
        self._passage.piece(data)

    @property
    def pours(self) -> bool:
        return self._passage.pours

    def poured(self, data: Poured) -> None:
        self._left -= len(data)
        self._passage.poured(data)

    def complete(self) -> None:
        self._passage.finish()

    def drop(self, reason: str) -> None:
        self._passage.abandon(reason)


class Streams:
    """The open streams of one publisher, by its own stream ids.

    most: streams that it may have open. most_bytes, most_gathered: bytes of a stream that says how many it
    has, and of one that does not.
    """

    def __init__(
        self, hub: Hub, shared: Shared, publisher: Line, *, most: int, most_bytes: int, most_gathered: int
    ) -> None:
        self._hub = hub
        self._shared = shared
        self._publisher = publisher
        self._most = most
        self._most_bytes, self._most_gathered = most_bytes, most_gathered
        self._open: dict[int, Stream] = {}
        self._refused: dict[int, None] = {}  # what still comes of them is passed over; the oldest first

    def open(self, opening: Opening, now: float) -> Sink:
        """A META frame; a stream that is open with its id is given up.

        Raises ProtocolError, LogFull, UsageError, InternalError.
        """
        number = opening.stream_id
        self.give_up(number, "another stream began with its id")
        if len(self._open) >= self._most:
            raise ProtocolError("control", f"{self._most} streams are open; no more are allowed")
        nbytes = Meta(opening.meta).get("nbytes") if b'"nbytes"' in opening.meta else None
        if opening.flags & ~WANTED or type(nbytes) is not int or nbytes < PASSED_FROM:
            stream: Stream = Gathered(self._hub, self._shared, opening, self._most_gathered, now)
        elif nbytes > self._most_bytes:
            raise ProtocolError("too_large", f"a stream of {nbytes} bytes; {self._most_bytes} are allowed")
        else:
            stream = Passed(self._hub, self._shared, opening, nbytes, self._publisher, now)
        if not opening.flags & EOF:
            self._open[number] = stream
        return stream

    def chunk(self, header: Header, topic: bytes, meta: bytes, now: float) -> Sink:
        """A CHUNK frame: where its data go. Raises ProtocolError; then the stream is given up."""
        number, last = header.stream_id, header.flags & EOF
        stream = self._open.get(number)
        if stream is None:
            if number not in self._refused:
                raise ProtocolError("control", f"a CHUNK of stream {number}, which no META opened")
            if last:
                del self._refused[number]
            return SKIPPED
        if stream.ended:  # the hub could not go on
            self.refuse(number, "")
            return SKIPPED
        try:
            if topic and topic != stream.opening.topic.encode():
                raise ProtocolError("topic", "a CHUNK of another topic than its META")
            stream.chunk(header, meta)
        except ProtocolError as error:
            self.give_up(number, str(error))
            if not last:
                self.refuse(number, "")
            raise
        if last:
            del self._open[number]
        stream.heard = now
        return stream

    def give_up(self, number: int, reason: str) -> None:
        """The stream will not be finished, and another one may begin."""
        self._refused.pop(number, None)
        stream = self._open.pop(number, None)
        if stream is not None:
            stream.abandon(reason)

    def refuse(self, number: int, reason: str) -> None:
        """The stream is given up by the broker: what still comes of it is passed over."""
        self.give_up(number, reason)
        self._refused[number] = None
        if len(self._refused) > self._most:
            del self._refused[next(iter(self._refused))]

    def leave(self, reason: str) -> None:
        """The publisher has gone."""
        for number in list(self._open):
            self.give_up(number, reason)

    def touch(self, now: float) -> None:
        """No chunk could come up to now: something else was on its way, or the publisher had to wait."""
        for stream in self._open.values():
            stream.heard = now

    def stalled(self, before: float) -> list[int]:
        """Gives up the streams that had no chunk since then; their ids."""
        late = [number for number, stream in self._open.items() if stream.heard < before]
        for number in late:
            self.refuse(number, "its publisher sent nothing more")
        return late
