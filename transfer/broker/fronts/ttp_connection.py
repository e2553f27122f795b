"""One connection of the TTP front: the frames that its peer sends, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from transfer.broker.core.message import Buffer, Front, Message
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.fronts.ttp_frames import (
    WORDS,
    Meta,
    headers_of,
    publish_fields,
    publish_head,
)
from transfer.broker.fronts.ttp_sender import TtpOutgoing
from transfer.broker.fronts.ttp_sinks import SKIPPED, LargePublish, StreamReceipt, StreamSink
from transfer.broker.fronts.ttp_streams import StreamLimits, Streams
from transfer.broker.net.connection_group import ConnectionGroup
from transfer.broker.protocols.ttp import (
    EOF,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    VERSION,
    WANTED,
    Header,
    TtpKind,
    decode_header,
    decode_meta,
    decode_topic,
    encode_acks,
    encode_error,
    encode_head,
    encode_meta,
)
from transfer.transports.errors import InDoubt, LogFull, ProtocolError, TransferError, UsageError

if TYPE_CHECKING:
    import socket

    from transfer.broker.fronts.ttp import TtpFront
    from transfer.broker.net.splice import SplicedChunk

_PUBLISH, _TTP = int(TtpKind.PUBLISH), Front.TTP  # members of an enum are slow to access
#: data from this size on are forwarded in pieces, as they come
LARGE = 64 << 10
#: frames up to this size are copied: a view of one would hold the memory of a thousand others
_SMALL = 4 << 10
#: bytes of answers that a peer may leave unread, in addition to its messages
_ANSWERS = 4 << 20
#: most small PUBLISHes of a batch
_MAX_BATCH = 64
#: heartbeats that a silent subscriber gets before it counts as idle
_ASKED = 3


class TtpConnection(TtpOutgoing):
    """A peer that speaks TTP. client: the name that it sent with CONNECT, or ""."""

    def __init__(self, front: TtpFront, lines: ConnectionGroup, connection: socket.socket, peer: str) -> None:
        self.client = ""
        self._front = front
        self._hub = front.hub
        self.most = front.most
        settings = front.settings
        self._streams = Streams(
            front.hub,
            front.shared,
            StreamLimits(settings.max_streams, settings.max_data, settings.max_stream_memory),
        )
        self._sink: StreamSink | None = None  # for data that are still to come
        self._number = 0  # the stream id of their frame
        self._asked = 0.0  # when a heartbeat was last requested
        self._subscribes = False  # it has subscriptions
        self._batch_limit = 1  # small PUBLISHes that the next batch may have
        self._unanswered: set[int] = set()  # stream ids whose publisher waits for an ACK
        super().__init__(lines, connection, peer)

    # -- frames of the peer ------------------------------------------------------------------------------

    def take_frames(self, data: memoryview) -> int:
        """See Connection."""
        at, end = 0, len(data)
        while end - at >= HEADER_SIZE and not self.closed:
            if at and monotonic() >= self.turn_ends:
                self.give_way()
                break
            used: int = self._take_publishes(data, at, end) or self._frame(data, at, end)
            at += used
            if not used or self._sink is not None or self._paused:
                break
        return at

    def _take_publishes(self, data: memoryview, begin: int, end: int) -> int:
        """Publishes a batch of small PUBLISHes, the common case, that begin there: as many as a turn has time
        for. Returns their bytes; 0: another frame begins there, or it is not whole."""
        at, front, limit = begin, self._front, self._batch_limit
        topics, max_meta = front.topics, front.limits.meta
        messages: list[Message] = []
        wanted: list[int] = []
        while len(messages) < limit and end - at >= HEADER_SIZE:
            magic, version, kind, flags, number, topic_size, meta_size, size = HEADER.unpack_from(data, at)
            meta_at = HEADER_SIZE + topic_size
            data_at = meta_at + meta_size
            stop: int = at + data_at + size
            if (
                kind != _PUBLISH or size >= LARGE or topic_size > 255 or meta_size > max_meta or stop > end
                or magic != MAGIC or version != VERSION
            ):  # fmt: skip
                break
            frame: Buffer = data[at:stop]
            if stop - at <= _SMALL:
                frame = bytes(frame)
            name = bytes(frame[HEADER_SIZE:meta_at])
            topic = topics.get(name)
            if topic is None:
                try:
                    topic = front.topic(name)
                except TransferError as error:
                    if messages:  # they come first
                        break
                    self._refuse(number, error)
                    return stop - at
            head, headers = bytes(frame[WORDS]), None
            if meta_size:
                meta = bytes(frame[meta_at:data_at])
                head, headers = head + meta, Meta(meta)
            messages.append(Message(topic, (memoryview(frame)[data_at:],), _TTP, head, headers, frame))
            if flags & WANTED:
                wanted.append(number)
            at = stop
        if messages:
            self._publish_batch(messages, wanted)
            if monotonic() >= self.turn_ends:
                self._batch_limit = 1
            elif len(messages) == limit < _MAX_BATCH:
                self._batch_limit = 2 * limit
        return at - begin

    def _publish_batch(self, messages: list[Message], wanted: list[int]) -> None:
        """Publishes messages, and acknowledges the frames with these numbers when all are kept."""
        on_complete = None
        if wanted:
            self._unanswered.update(wanted)
            on_complete = partial(self._acknowledge, wanted)
        try:
            if len(messages) == 1:
                self._hub.publish(messages[0], on_complete, self)
            elif not self._hub.publish_batch(messages, on_complete, self):
                for message in messages:
                    flags, number = publish_fields(message.head)
                    self._publish_batch([message], [number] if flags & WANTED else [])
                return
            self._front.counters["published"] += len(messages)
        except TransferError as error:
            for message in messages:
                self._refuse(publish_fields(message.head)[1], error)

    def _frame(self, data: memoryview, at: int, end: int) -> int:
        """Handles any other frame, up to its data. Returns its bytes; 0: some are missing, or it must
        wait."""
        header = decode_header(data, at, self._front.limits)
        data_at = at + header.data_at
        if data_at > end or (header.kind == _PUBLISH and header.data_size < LARGE):
            return 0
        meta_at = at + HEADER_SIZE + header.topic_size
        topic, meta = bytes(data[at + HEADER_SIZE : meta_at]), bytes(data[meta_at:data_at])
        try:
            self._sink = _HANDLERS[header.kind](self, header, topic, meta)
        except LogFull as error:
            self._hub.apply_backpressure(self)
            if self.paused:
                return 0  # the same frame again when there is room
            self._refuse(header.stream_id, error)
        except TransferError as error:
            self._refuse(header.stream_id, error)
        if self._sink is None:
            self._sink = SKIPPED
        if self.closed:  # by a message that the handler sent to it
            self._sink.abandon("its publisher has disconnected")
            return header.data_at
        self._number = header.stream_id
        if header.data_size:
            self.expect(header.data_size)
        else:
            self.body_ended()
        return header.data_at

    def body(self, data: memoryview) -> None:
        """See Connection."""
        sink = self._sink or SKIPPED
        try:
            sink.piece(data)
        except TransferError as error:
            self._sink = SKIPPED  # the rest of the frame is ignored
            self._stopped(sink, error)

    @property
    def can_splice(self) -> bool:
        """See Connection."""
        return self._sink is not None and self._sink.accepts_spliced

    def body_spliced(self, data: SplicedChunk) -> None:
        """See Connection."""
        sink = self._sink or SKIPPED
        try:
            sink.piece_spliced(data)
        except TransferError as error:
            self._sink = SKIPPED
            self._stopped(sink, error)

    def body_ended(self) -> None:
        """See Connection."""
        sink, self._sink = self._sink or SKIPPED, None
        try:
            sink.finish()
        except TransferError as error:
            self._stopped(sink, error)
        if not self.closed:
            self._hub.apply_backpressure(self)

    def _stopped(self, sink: StreamSink, error: TransferError) -> None:
        """Handles a refusal of the hub in the middle of a frame, or at its end."""
        sink.abandon(str(error))
        self._refuse(self._number, error)

    def _revoked(self, error: TransferError) -> None:
        """Gives up the payload in transfer, as the broker decided."""
        sink, self._sink = self._sink or SKIPPED, SKIPPED
        self._stopped(sink, error)

    def _connect(self, header: Header, topic: bytes, meta: bytes) -> None:
        name = (decode_meta(meta) or {}).get("client", "")
        self.client = name[:255] if isinstance(name, str) else ""
        settings = self._front.settings
        limits = {"idle": settings.idle_timeout, "max_data": settings.max_data, "max_meta": settings.max_meta}
        self._answer(encode_head(TtpKind.ACK, b"", encode_meta(limits), 0, 0, header.stream_id))

    def _subscribe(self, header: Header, topic: bytes, meta: bytes) -> None:
        wanted = pattern(Kind.PATHS, decode_topic(topic))
        if (decode_meta(meta) or {}).get("unsubscribe") is True:
            self._hub.unsubscribe(self, wanted)
        else:
            self._hub.subscribe(self, wanted)
            self._front.counters["subscribed"] += 1
        self._subscribes = self in self._hub.fanout.subscriptions()
        if header.flags & WANTED:
            self._acknowledge((header.stream_id,), None)

    def _publish(self, header: Header, topic: bytes, meta: bytes) -> StreamSink:
        """Handles a large PUBLISH; `take_frames` handles small ones."""
        name = self._front.topics.get(topic) or self._front.topic(topic)
        receipt = self._receipt(header.stream_id) if header.flags & WANTED else None
        message = Message(
            name, (), Front.TTP, publish_head(header.flags, header.stream_id, meta), headers_of(meta)
        )  # fmt: skip
        upload = self._hub.begin(message, header.data_size, self, receipt, revoke=self._revoked)
        self._front.counters["published"] += 1
        return LargePublish(upload, receipt)

    def _stream(self, header: Header, topic: bytes, meta: bytes) -> StreamSink:
        """Handles META or CHUNK: the next frame of a stream, or its first one."""
        number = header.stream_id
        self._front.counters["streams" if header.kind == TtpKind.META else "chunks"] += 1
        try:
            name = (self._front.topics.get(topic) or self._front.topic(topic)) if topic else ""
            if header.kind == TtpKind.META and not topic:
                name = self._front.topic(topic)  # this raises
        except TransferError as error:
            if not header.flags & EOF:
                self._streams.refuse(number, str(error))
            raise
        receipt = partial(self._receipt, number)
        return self._streams.frame(self, header, topic, name, meta, receipt, self._loop.time())

    def _heartbeat(self, header: Header, topic: bytes, meta: bytes) -> None:
        self._front.counters["heartbeats"] += 1
        self._answer(encode_head(TtpKind.HEARTBEAT, stream_id=header.stream_id))

    def _acknowledged(self, header: Header, topic: bytes, meta: bytes) -> None:
        """Ignores an ACK: in TTP a subscriber need not acknowledge anything."""

    def _error(self, header: Header, topic: bytes, meta: bytes) -> None:
        """Handles the ERROR of a publisher that gives a stream up."""
        self._unanswered.discard(header.stream_id)
        self._streams.give_up(header.stream_id, "its publisher gave it up")

    # -- answers -----------------------------------------------------------------------------------------

    def _receipt(self, number: int) -> StreamReceipt:
        self._unanswered.add(number)
        return StreamReceipt(partial(self._acknowledge, (number,)))

    def _acknowledge(self, numbers: Sequence[int], error: TransferError | None) -> None:
        """Answers publishers' frames: they are kept, or why they are not."""
        if error is None:
            self._unanswered.difference_update(numbers)
            self._answer(encode_acks(numbers))
        else:
            for number in numbers:
                self._refuse(number, error)

    def _refuse(self, number: int, error: TransferError) -> None:
        """Reports that the frame was not taken; the connection goes on."""
        self._front.counters["refused"] += 1
        self._unanswered.discard(number)
        self._answer(encode_error(number, _code(error), str(error)))

    def pause(self) -> None:
        """See Connection."""
        super().pause()
        self._report_full()

    def _report_full(self) -> None:
        """Reports why a publish waits for room in the log: an ERROR about no frame, if the last one was
        read."""
        if (self.paused or self._unanswered) and self._hub.is_full and not self.queued and not self.closed:
            self._answer(encode_error(0, "full", self._hub.full))

    def refuse(self, error: ProtocolError) -> None:
        """See Connection: bytes after the error cannot be parsed."""
        self._front.counters["broken"] += 1
        self._close_with_error(error.reason, str(error))

    def _close_with_error(self, code: str, message: str) -> None:
        if not self.in_payload:
            self.write(encode_error(0, code, message))
        self.close(message)

    def _answer(self, frame: Buffer) -> None:
        self.send((frame,))
        if self.queued > _ANSWERS + self.limit * self._subscribes:
            self.close("the peer does not read its answers")

    def on_drained(self) -> None:
        """See Connection."""
        if self._subscribes:
            self._hub.on_drained(self)

    # -- time, and the end -------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Ends the connection if it is idle. A subscriber need only answer the heartbeats that it gets."""
        self._report_full()
        idle = self._front.settings.idle_timeout
        if self.paused or self._sink is not None:
            self._streams.touch(now)
        for number in self._streams.stalled(now - idle):
            self._front.counters["stalled"] += 1
            self._unanswered.discard(number)
            self._answer(encode_error(number, "stalled", f"no chunk came for {idle:g} s"))
        if self.paused or self.in_payload:  # it must wait, or the hub checks whether it reads
            self.last_read = now
        silent = now - self.last_read
        if silent >= idle:
            self._front.counters["idle"] += 1
            self._close_with_error("idle", f"nothing came for {idle:g} s")
        elif self._subscribes and silent >= idle / _ASKED and now - self._asked >= idle / _ASKED:
            self._asked = now
            self._answer(encode_head(TtpKind.HEARTBEAT, flags=WANTED))

    def lost(self, reason: str) -> None:
        """See Connection."""
        super().lost(reason)
        if self._sink is not None:
            self._sink.abandon(reason)
            self._sink = None
        self._streams.leave(reason)
        self._hub.leave(self)
        self._front.disconnected(self)


_HANDLERS: dict[TtpKind, Callable[[TtpConnection, Header, bytes, bytes], StreamSink | None]] = {
    TtpKind.CONNECT: TtpConnection._connect,
    TtpKind.SUBSCRIBE: TtpConnection._subscribe,
    TtpKind.PUBLISH: TtpConnection._publish,
    TtpKind.META: TtpConnection._stream,
    TtpKind.CHUNK: TtpConnection._stream,
    TtpKind.ACK: TtpConnection._acknowledged,
    TtpKind.HEARTBEAT: TtpConnection._heartbeat,
    TtpKind.ERROR: TtpConnection._error,
}


def _code(error: TransferError) -> str:
    """Returns the constant word of an error in ERROR frames."""
    if isinstance(error, ProtocolError):
        return error.reason
    if isinstance(error, LogFull):
        return "full"
    if isinstance(error, InDoubt):
        return "in_doubt"
    return "usage" if isinstance(error, UsageError) else "failed"
