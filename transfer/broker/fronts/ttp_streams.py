"""Streams of TTP: frames with one stream id and one topic, up to the one with EOF.

Each frame is forwarded to TTP's subscribers at once, with its own header. For all others, and for the log, a
stream is one message: all its data, when it has ended. For a kept topic it is gathered in memory at first,
then on the disk; otherwise in memory, and only if there are such subscribers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from transfer.broker.core.message import Buffer, Front
from transfer.broker.delivery.frame_stream import FrameStream, Streamed, StreamFrame
from transfer.broker.fronts.ttp_frames import cut, headers_of, stream_head
from transfer.broker.fronts.ttp_sinks import SKIPPED, StreamReceipt, StreamSink
from transfer.broker.protocols.ttp import EOF, MOST_NUMBER, WANTED, Header, TtpKind, encode_error, encode_head
from transfer.transports.errors import ProtocolError, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.hub import Hub
    from transfer.broker.net.connection import Connection
    from transfer.broker.net.splice import SplicedChunk
    from transfer.broker.storage.blob_writer import BlobWrite

#: data of a frame up to this size are forwarded when they are whole
_WHOLE = 4 << 20
#: pieces up to this size are copied: a view of one would hold the memory of a thousand others
_SMALL = 4 << 10
#: bytes that are gathered in memory before they are written to the disk
_IN_MEMORY = 1 << 20
#: bytes of memory that a chunk costs in addition to its data: many empty ones cost, too
_CHUNK_COST = 16
#: bytes of memory that an open stream costs, whatever came of it
_STREAM_COST = 2 << 10


_NO_MEMORY = "too many bytes of unfinished streams are held already"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one connection. streams: open ones. kept: bytes of a kept stream. gathered: bytes of a stream
    in memory, and of the descriptions of its chunks."""

    streams: int
    kept: int
    gathered: int


class StreamsShared:
    """State that all connections of the front share. used: stream ids that subscribers see now. gathered:
    bytes that open streams have in memory and cost; most: limit on them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.gathered = 0
        self.used: set[int] = set()
        self._next = MOST_NUMBER

    def take(self, wanted: int) -> int:
        """Begins a stream and returns its id for subscribers: one from the upper end, if two publishers chose
        the same. Raises ProtocolError."""
        if self.gathered + _STREAM_COST > self.most:
            raise ProtocolError("no_memory", _NO_MEMORY)
        self.gathered += _STREAM_COST
        number = wanted
        while number in self.used:
            number, self._next = self._next, self._next - 1
        self.used.add(number)
        return number

    def give_back(self, number: int, nbytes: int) -> None:
        """Ends a stream, which had so many bytes in memory."""
        self.used.discard(number)
        self.gathered -= nbytes + _STREAM_COST


class TtpStream:
    """One open stream of one publisher, and the sink for the data of its frames. On the broker's loop.
    number: its id for subscribers. last_frame_at: when its last frame began. receipt: for a publisher that
    wants an ACK. ended: it takes nothing more."""

    # there may be hundreds of thousands of them
    __slots__ = (
        "_cost",
        "_cuts",
        "_data",
        "_flags",
        "_frame_data",
        "_gathers",
        "_head",
        "_header",
        "_hub",
        "_kept",
        "_largest",
        "_limits",
        "_meta",
        "_nbytes",
        "_publisher",
        "_shared",
        "_upload",
        "_writing",
        "ended",
        "last_frame_at",
        "number",
        "receipt",
        "topic",
    )

    def __init__(
        self,
        hub: Hub,
        shared: StreamsShared,
        publisher: Connection,
        topic: str,
        header: Header,
        limits: StreamLimits,
    ) -> None:
        self.topic = topic
        self.last_frame_at = 0.0
        self.receipt: StreamReceipt | None = None
        self.ended = False
        self.number = shared.take(header.stream_id)
        self._hub, self._shared, self._publisher, self._limits = hub, shared, publisher, limits
        self._largest = min(limits.kept, hub.store.largest)
        self._flags, self._meta = 0, b""
        self._cuts = bytearray()
        self._data = bytearray()
        self._frame_data: list[Buffer] = []
        self._head: tuple[Buffer, ...] = ()
        self._header = header
        self._nbytes = self._cost = 0
        self._writing: BlobWrite | None = None
        self._upload: FrameStream
        try:
            broken_off = partial(_broken_off, topic, self.number)
            self._upload = hub.streams.begin(topic, publisher, broken_off)
            self._gathers = hub.streams.gathers(topic)
        except BaseException:
            shared.give_back(self.number, 0)
            raise
        self._kept = self._upload.topic.durable

    # -- frames ------------------------------------------------------------------------------------------

    def begin(self, header: Header, topic: bytes, meta: bytes) -> None:
        """Begins a frame. Its data come by `piece` or `piece_spliced`, then `finish`. Raises
        ProtocolError."""
        if header.kind == TtpKind.META:
            empty = header.flags & EOF and not header.data_size
            self._flags, self._meta = header.flags if empty else header.flags & ~EOF, meta
        if self._gathers:
            self._charge(header, meta)
        self._header = header
        head = encode_head(header.kind, topic, meta, header.data_size, header.flags, self.number)
        self._hub.streams.join(self._upload)
        if header.data_size > _WHOLE:
            self._upload.begin_frame(StreamFrame(self.topic, (head,)), header.data_size)
        else:
            self._head = (head,)

    @property
    def accepts_spliced(self) -> bool:
        """See Sink."""
        return not self._gathers and self._header.data_size > _WHOLE and self._upload.accepts_spliced

    def piece(self, data: Buffer) -> None:
        """Takes the next bytes."""
        self._nbytes += len(data)
        if self._head:
            self._frame_data.append(bytes(data) if len(data) <= _SMALL else data)
        else:
            self._upload.piece(data)
        if self._gathers:
            self._gather(data)

    def piece_spliced(self, data: SplicedChunk) -> None:
        """Takes the next bytes from a pipe."""
        if self._gathers or self._head:
            self.piece(data.memory())
        else:
            self._nbytes += len(data)
            self._upload.piece_spliced(data)

    def finish(self) -> None:
        """Ends a frame, which may end the stream. Raises what the hub raises."""
        if self._head:
            frame, self._head, self._frame_data = (
                StreamFrame(self.topic, (*self._head, *self._frame_data)),
                (),
                [],
            )
            self._upload.frame(frame)
        else:
            self._upload.end_frame()
        if self._header.flags & EOF:
            self._end()
            self._complete()

    def abandon(self, reason: str) -> None:
        """Gives the stream up. Idempotent."""
        if not self.ended:
            self._end()
            self._data, self._cuts, self._frame_data = bytearray(), bytearray(), []
            self._upload.abandon(reason)
            if self._writing is not None:
                self._writing.abandon()
            if self.receipt is not None:
                self.receipt.cancel()

    # -- one message -------------------------------------------------------------------------------------

    def _charge(self, header: Header, meta: bytes) -> None:
        size, cost = header.data_size, len(meta) + _CHUNK_COST
        held = cost if self._writing is not None else cost + size
        if self._kept and self._nbytes + size > self._largest:
            raise ProtocolError("too_large", f"the stream has more than {self._largest} bytes")
        too_much = self._cost + cost if self._kept else self._cost + held
        if too_much > self._limits.gathered:
            if self._kept:
                raise ProtocolError(
                    "too_large",
                    f"the descriptions of the stream's chunks exceed {self._limits.gathered} bytes",
                )
            self._give_up_gathering()
            return
        if self._shared.gathered + min(held, cost + _IN_MEMORY) > self._shared.most:
            if self._kept:
                raise ProtocolError("no_memory", _NO_MEMORY)
            self._give_up_gathering()
            return
        self._cost += cost
        self._shared.gathered += cost
        if header.kind == TtpKind.CHUNK or size:
            its = (header.flags, meta) if header.kind == TtpKind.CHUNK else (header.flags & EOF, b"")
            self._cuts += cut(its[0], size, its[1])

    def _gather(self, data: Buffer) -> None:
        if self._writing is not None:
            self._writing.write(data)
            return
        self._data += data
        self._cost += len(data)
        self._shared.gathered += len(data)
        if self._kept and len(self._data) > _IN_MEMORY:
            self._writing = self._hub.streams.write(
                self._upload, self._publisher, self._largest, self._message
            )
            self._writing.write(memoryview(self._data).toreadonly())
            self._cost -= len(self._data)
            self._shared.gathered -= len(self._data)
            self._data = bytearray()

    def _give_up_gathering(self) -> None:
        """Stops gathering: the stream is not kept, and too large for memory. Subscribers of other protocols
        do not get it."""
        self._gathers = False
        self._hub.streams.drop(self._upload)
        self._data, self._cuts = bytearray(), bytearray()

    def _complete(self) -> None:
        self._upload.nbytes = self._nbytes
        if self._writing is not None:
            self._writing.on_complete = self.receipt
            self._upload.finish()
            self._writing.finish()
        elif self._gathers:
            given = self._upload.given
            self._upload.finish()
            message = self._message((memoryview(self._data).toreadonly(),))
            message.given = given
            self._hub.publish(message, self.receipt)
        else:
            self._upload.finish()
            self._hub.streams.count(self._upload)
            if self.receipt is not None:
                self.receipt(None)
        if self.receipt is not None:
            self.receipt.whole()

    def _message(self, parts: tuple[Buffer, ...] = ()) -> Streamed:
        head = stream_head(self._flags, self.number, self._meta, self._cuts)
        message = Streamed(self.topic, parts, Front.TTP, head, headers_of(self._meta))
        message.given = frozenset()
        return message

    def _end(self) -> None:
        self.ended = True
        self._shared.give_back(self.number, self._cost)
        self._cost = 0


def _broken_off(topic: str, number: int, reason: str) -> StreamFrame:
    """Makes the frame that reports a broken-off stream. Not a method: a reference to the stream would make a
    cycle, which only the garbage collector frees."""
    return StreamFrame(topic, (encode_error(number, "broken_off", reason),))


class Streams:
    """The open streams of one publisher, by its own stream ids and their topics."""

    def __init__(self, hub: Hub, shared: StreamsShared, limits: StreamLimits) -> None:
        self._hub = hub
        self._shared = shared
        self._limits = limits
        self._open: dict[int, dict[str, TtpStream]] = {}  # the newest stream of an id is the last
        self._count = 0
        self._oldest = 0.0  # no stream had its last frame before this
        self._refused: dict[int, None] = {}  # later frames of these are ignored; the oldest first

    def frame(
        self,
        publisher: Connection,
        header: Header,
        topic: bytes,
        name: str,
        meta: bytes,
        receipt: Callable[[], StreamReceipt],
        now: float,
    ) -> StreamSink:
        """Handles a META or CHUNK. Returns the sink for its data. name: its topic, "" if it names none.
        Raises ProtocolError and what the hub raises; then the stream is given up."""
        number, last = header.stream_id, bool(header.flags & EOF)
        if header.kind == TtpKind.META:
            self.give_up(number, "another stream began with its id")
        elif number in self._refused:
            if last:
                del self._refused[number]
            return SKIPPED
        its = self._open.get(number, {})
        name = name or next(reversed(its), "")
        if not name:
            raise ProtocolError("control", f"a CHUNK names no topic, and stream {number} has none open")
        stream = its.get(name)
        try:
            if stream is None:
                stream = self._begin(publisher, name, header)
            if header.flags & WANTED and stream.receipt is None:
                stream.receipt = receipt()
            stream.begin(header, topic, meta)
        except TransferError as error:
            self.give_up(number, str(error))
            if not last:
                self.refuse(number, "")
            raise
        if last:
            self._forget(name, number)
        stream.last_frame_at = now
        return stream

    def _begin(self, publisher: Connection, name: str, header: Header) -> TtpStream:
        if self._count >= self._limits.streams:
            raise ProtocolError("control", f"{self._limits.streams} streams are open; no more are allowed")
        stream = TtpStream(self._hub, self._shared, publisher, name, header, self._limits)
        self._open.setdefault(header.stream_id, {})[name] = stream
        self._count += 1
        return stream

    def _forget(self, name: str, number: int) -> None:
        its = self._open.get(number, {})
        self._count -= its.pop(name, None) is not None
        if not its:
            self._open.pop(number, None)

    def give_up(self, number: int, reason: str) -> None:
        """Gives up the streams with this id, and another one may begin."""
        self._refused.pop(number, None)
        its = self._open.pop(number, {})
        self._count -= len(its)
        for stream in its.values():
            stream.abandon(reason)

    def refuse(self, number: int, reason: str) -> None:
        """Gives up a stream for the broker: later frames of it are ignored."""
        self.give_up(number, reason)
        self._refused[number] = None
        if len(self._refused) > self._limits.streams:
            del self._refused[next(iter(self._refused))]

    def leave(self, reason: str) -> None:
        """Gives up all streams: the publisher has disconnected."""
        for number in list(self._open):
            self.give_up(number, reason)

    def touch(self, now: float) -> None:
        """Counts all streams as active: no frame could come up to now, because other data came or the
        publisher had to wait."""
        for its in self._open.values():
            for stream in its.values():
                stream.last_frame_at = now

    def stalled(self, before: float) -> list[int]:
        """Gives up the streams that had no frame since then, and returns their ids."""
        if self._oldest >= before:
            return []
        times = {
            number: min(stream.last_frame_at for stream in its.values()) for number, its in self._open.items()
        }
        late = sorted(number for number, when in times.items() if when < before)
        self._oldest = min((when for when in times.values() if when >= before), default=before)
        for number in late:
            self.refuse(number, "its publisher sent nothing more")
        return late
