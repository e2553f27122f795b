"""The streams that are published: they forward frames to subscribers; a kept stream becomes one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.delivery.frame_stream import FrameStream, StreamFrame
from transfer.broker.storage.blob_writer import BlobWrite, BlobWriterThread

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.dispatcher_driver import DispatcherDriver
    from transfer.broker.delivery.fanout import Fanout
    from transfer.broker.delivery.streaming_publish import StreamingPublish, UploadPublisher
    from transfer.broker.delivery.streaming_publishes import StreamingPublishes
    from transfer.broker.delivery.subscriber import BrokerSubscriber
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic
    from transfer.transports.errors import TransferError

    #: appends the record of a payload that is written; False: it is not kept. Raises LogFull
    Placed = Callable[[Topic, Message, BlobWrite, OnComplete | None, TransferError | None], bool]


class FrameStreams:
    """The streams that publishers have open. Not thread-safe: on the broker's loop. uploads: the hub's
    streaming publishes, which include the streams. direct: direct delivery, if it is enabled."""

    def __init__(
        self,
        store: Store,
        fanout: Fanout,
        writer: BlobWriterThread,
        uploads: StreamingPublishes,
        counts: Counter[str],
        placed: Placed,
        direct: Callable[[], DispatcherDriver | None],
    ) -> None:
        self._store = store
        self._fanout = fanout
        self._writer = writer
        self._uploads = uploads
        self._counts = counts
        self._placed = placed
        self._direct = direct

    def begin(
        self, name: str, publisher: UploadPublisher, broken_off: Callable[[str], StreamFrame]
    ) -> FrameStream:
        """Begins a stream whose frames are forwarded as they come. Raises UsageError."""
        topic = self._store.topic(name)
        receivers = [one for one in self._fanout.listeners(topic) if self._takes_frames(one, topic)]
        return FrameStream(topic, publisher, receivers, self._uploads, self._ended, broken_off)

    def _takes_frames(self, subscriber: BrokerSubscriber, topic: Topic) -> bool:
        room = subscriber.queued <= subscriber.limit
        return subscriber.takes_frames and room and not self._fanout.is_behind(subscriber, topic)

    def join(self, upload: FrameStream) -> None:
        """Adds new subscribers, which receive the next frame, if the topic keeps nothing."""
        topic = upload.topic
        if not topic.durable:
            for subscriber in self._fanout.listeners(topic):
                if self._takes_frames(subscriber, topic):
                    upload.join(subscriber)

    def gathers(self, name: str) -> bool:
        """Returns whether the log or a subscriber needs a stream of this topic as one message."""
        topic = self._store.topic(name)
        wanted = any(not one.takes_frames and not one.idle for one in self._fanout.listeners(topic))
        direct = self._direct()
        return topic.durable or wanted or (direct is not None and direct.has_route(name))

    def write(
        self, upload: FrameStream, publisher: UploadPublisher, most: int, message: Callable[[], Message]
    ) -> BlobWrite:
        """Opens the place for the bytes of a kept stream, at most `most`. message: makes its message at the
        end."""
        topic = upload.topic
        writing = BlobWrite(
            self._writer,
            lambda: self._store.log.blob(topic.log_name, most, arriving=True),
            publisher,
            lambda error: self._written(upload, writing, message(), error),
        )
        return writing

    def drop(self, upload: FrameStream) -> None:
        """Drops a stream that is not kept, for subscribers of other protocols."""
        for subscriber in self._fanout.listeners(upload.topic):
            if not subscriber.takes_frames:
                self._fanout.left_out(subscriber, upload.topic, None)

    def count(self, upload: FrameStream) -> None:
        """Counts an ended stream."""
        for counted in (upload.topic, self._store):
            counted.messages += 1
            counted.nbytes += upload.nbytes

    def _ended(self, upload: StreamingPublish) -> None:
        self._counts["broken_off"] += upload.broken
        if not upload.topic.durable:
            for subscriber in upload.left_out:
                self._fanout.left_out(subscriber, upload.topic, None)

    def _written(
        self, upload: FrameStream, writing: BlobWrite, message: Message, error: TransferError | None
    ) -> None:
        """Appends a kept stream whose bytes are all written. Raises LogFull."""
        topic = upload.topic
        if not self._placed(topic, message, writing, writing.on_complete, error):
            return
        assert message.offset is not None
        self.count(upload)
        if (direct := self._direct()) is not None:
            direct.offer(topic, message, nbytes=upload.nbytes)
        given = upload.given
        for subscriber in self._fanout.listeners(topic):
            if subscriber in given:
                self._fanout.given(subscriber, topic, message.offset)
            else:
                self._fanout.read_from_log(subscriber, topic, message.offset)
