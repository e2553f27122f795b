"""The hub, which the fronts call: it takes messages, keeps them, and offers them to all subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from transfer.broker.core.message import Front
from transfer.broker.delivery.announced import UNCOUNTED, Announced, AnnouncedLimits, Announcement
from transfer.broker.delivery.fanout import Fanout
from transfer.broker.delivery.frame_streams import FrameStreams
from transfer.broker.delivery.group_contract import IsDeadLettered, StoreDeadLetter
from transfer.broker.delivery.groups import MOST_GROUPS, Groups
from transfer.broker.delivery.streaming_publish import StreamingPublish, UploadPublisher, takes
from transfer.broker.delivery.streaming_publishes import StreamingPublishes
from transfer.broker.service_threads import ServiceThreads
from transfer.broker.storage.blob_writer import BlobWrite, BlobWriterThread
from transfer.broker.storage.durability import (
    MAX_UNSYNCED,
    BatchCompletion,
    Durability,
    OnComplete,
    complete,
)
from transfer.broker.storage.large_write_queue import LARGE, LargeWriteQueue
from transfer.broker.storage.log_epochs import LogEpochs
from transfer.broker.storage.log_holders import held_by
from transfer.broker.storage.stored_message import BLOB_FROM, record_of
from transfer.transports.errors import InternalError, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.groups import Delay
    from transfer.broker.core.message import Buffer, Message
    from transfer.broker.core.topic_patterns import TopicPattern
    from transfer.broker.delivery.dispatcher_driver import DispatcherDriver
    from transfer.broker.delivery.subscriber import BrokerSubscriber
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")

#: default for the seconds that a receiver may block a large message for the others
PATIENCE = 10.0
#: seconds for which the broker caches what holds a full log
_HELD_BY_FOR = 1.0
#: messages of these fronts find their routes before they are kept, or have none
_ROUTED = (Front.ABTP, Front.BROKER)


class Hub:
    """Takes, keeps and distributes messages. On the broker's loop: not thread-safe, nothing blocks.

    counts: events by name, which the metrics read. threads: they run as long as the broker.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        delay: Delay,
        store_dead_letter: StoreDeadLetter,
        *,
        is_dead_lettered: IsDeadLettered = lambda topic, group, offset: False,
        patience: float = PATIENCE,
        expire: float | None = None,
        max_groups: int = MOST_GROUPS,
        threads: ServiceThreads | None = None,
        announced: AnnouncedLimits | None = None,
    ) -> None:
        self.store = store
        self.epochs = LogEpochs(store.log)
        self.threads = threads or ServiceThreads()
        self.announced = Announced(announced or AnnouncedLimits())
        self._loop = loop
        self.counts: Counter[str] = Counter()
        self.fanout = Fanout(store, self.counts, loop.call_soon)
        self.durability = Durability(loop, store, self._appended, self._kept, self._remember)
        self.groups = Groups(
            loop,
            store,
            self.durability,
            self.counts,
            delay,
            store_dead_letter,
            is_dead_lettered,
            expire,
            max_groups,
        )
        #: direct delivery, if a front has consumers for it
        self.direct: DispatcherDriver | None = None
        self._patience = patience
        self._held_by, self._held_by_until = "", 0.0
        self._writer = BlobWriterThread(loop, self.threads)
        self._large_writes = LargeWriteQueue(self._writer, store, self._keep, self._written_whole)
        self.durability.at_failure = self._large_writes.failed
        self._uploads = StreamingPublishes()
        self.streams = FrameStreams(
            store, self.fanout, self._writer, self._uploads, self.counts, self._placed, lambda: self.direct
        )
        self._at_end: list[Callable[[], None]] = []

    def close(self) -> None:
        """Ends the hub's threads; all messages that were taken whole are on the disk then. Idempotent."""
        for upload in list(self._uploads):
            upload.abandon("the broker ends")
        self._writer.stop()
        self._large_writes.close()
        self._writer.close()
        if self.direct is not None:
            self.direct.close()
        self.groups.close()
        self.durability.close()

    # -- publishing --------------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        on_complete: OnComplete | None = None,
        publisher: UploadPublisher | None = None,
        *,
        hold: bool = True,
    ) -> None:
        """Takes a whole message. If the log is full, the message waits for room.

        on_complete: called when it is kept as its topic promises, or with the reason why it is not kept; at
        once if the topic keeps nothing. publisher: is paused if the disk cannot follow. hold: False: raises
        LogFull instead of waiting, which names what holds the log. Raises UsageError when there are too many
        topics, InternalError when the log has failed.
        """
        topic = self.store.topics.get(message.topic) or self.store.topic(message.topic)
        durability, large_writes = self.durability, self._large_writes
        if not topic.durable:
            self._appended(topic, (message,), message.nbytes)
            if on_complete is not None:
                on_complete(None)
        elif not hold and self.is_full:
            raise LogFull(self.full)
        elif message.nbytes >= LARGE or topic in large_writes.waiting:
            large_writes.take(topic, message, on_complete, hold=hold)
        elif not hold:
            self.keep_now(topic, message, on_complete)
        elif durability.append(topic, message, on_complete):
            self._appended(topic, (message,), message.nbytes)
        if publisher is not None and (
            durability.full or durability.unsynced > MAX_UNSYNCED or large_writes.waiting
        ):
            self.apply_backpressure(publisher)

    def publish_many(self, messages: Sequence[Message], on_complete: OnComplete | None = None) -> None:
        """Takes one or more messages in order. Raises as `publish`; some may have been taken then.
        on_complete: called when all are kept, or with the reason why one is not."""
        if not self.publish_batch(messages, on_complete):
            each = BatchCompletion(len(messages), on_complete)
            for message in messages:
                self.publish(message, each)

    def publish_batch(
        self,
        messages: Sequence[Message],
        on_complete: OnComplete | None = None,
        publisher: UploadPublisher | None = None,
    ) -> bool:
        """Takes small messages of known topics in order, with one append: all or none. on_complete: called
        once for all, as in `publish`. publisher: is paused if the disk cannot follow. Returns False if none
        is taken: then publish them one by one."""
        known, topics, durable, nbytes = self.store.topics, [], 0, 0
        for message in messages:
            topic = known.get(message.topic)
            if topic is None or message.nbytes >= BLOB_FROM:
                return False
            topics.append(topic)
            durable += topic.durable
            nbytes += message.nbytes
        if durable and (
            durable < len(topics)
            or self._large_writes.waiting
            or not self.durability.append_many(topics, messages, nbytes, on_complete)
        ):
            return False
        if topics.count(topics[0]) == len(topics):
            self._appended(topics[0], messages, nbytes)
        else:
            for topic, message in zip(topics, messages, strict=True):
                self._appended(topic, (message,), message.nbytes)
        if not durable and on_complete is not None:
            on_complete(None)
        if publisher is not None and (self.durability.full or self.durability.unsynced > MAX_UNSYNCED):
            self.apply_backpressure(publisher)
        return True

    def keep_now(self, topic: Topic, message: Message, on_complete: OnComplete | None = None) -> None:
        """Appends a message on the loop, however large it is: it has its offset at once. Raises LogFull,
        which names what holds the log; nothing is kept then."""
        try:
            self.durability.append(topic, message, on_complete, hold=False)
        except LogFull as error:
            raise LogFull(self.full or str(error)) from error
        self._appended(topic, (message,), message.nbytes)

    def _keep(self, topic: Topic, message: Message, on_complete: OnComplete | None) -> None:
        if self.durability.append(topic, message, on_complete):
            self._appended(topic, (message,), message.nbytes)

    def begin(
        self,
        message: Message,
        nbytes: int,
        publisher: UploadPublisher,
        on_complete: OnComplete | None = None,
        *,
        revoke: Callable[[TransferError], None] | None = None,
        source: object = None,
    ) -> StreamingPublish:
        """Takes a large message whose payload comes in pieces (its `parts` are empty). It reserves nothing in
        advance.

        publisher: is paused when receivers or the disk cannot follow. on_complete: as in `publish`; also
        called with an error if the message is not kept. revoke: called if the broker gives up a slow message
        because others wait; the publisher must abandon it. source: the connection or program whose announced
        bytes count together; None: the publisher. Raises UsageError, and LogFull if there is no room for the
        announced bytes.
        """
        topic = self.store.topic(message.topic)
        announcement: Announcement | None = None
        if topic.durable:
            announcement = self._announce(publisher if source is None else source, nbytes)
        receivers: list[BrokerSubscriber] = []
        left_out: list[BrokerSubscriber] = []
        for subscriber in self.fanout.listeners(topic):
            free = not self.fanout.is_behind(subscriber, topic) and takes(subscriber, message, nbytes)
            (receivers if free else left_out).append(subscriber)
        writing: BlobWrite | None = None
        if topic.durable:
            writing = BlobWrite(
                self._writer,
                lambda: self.store.log.blob(topic.log_name, nbytes, arriving=True),
                publisher,
                lambda error: self._written(upload, on_complete, error),
            )
        upload = StreamingPublish(
            topic,
            message,
            nbytes,
            publisher,
            receivers,
            self._uploads,
            writing,
            self._ended,
            announcement,
            revoke,
        )
        upload.leave_out(left_out)
        if writing is None and on_complete is not None:
            on_complete(None)
        return upload

    def _announce(self, source: object, nbytes: int) -> Announcement | None:
        """Counts a payload as announced. Raises UsageError, LogFull."""
        self.store.check_room(nbytes)
        if nbytes <= UNCOUNTED:
            return None
        if not self.announced.fits(nbytes):
            self._revoke_slow(nbytes)
        self.store.check_volume(self.announced.nbytes + nbytes)
        return self.announced.add(source, nbytes)

    def _revoke_slow(self, nbytes: int) -> None:
        """Revokes payloads whose bytes hardly come to make room for another one, the oldest first."""
        now = self._loop.time()
        for upload in [one for one in self._uploads.announced if one.revoke is not None and one.is_slow(now)]:
            if self.announced.fits(nbytes):
                return
            self._revoke(
                upload, "its bytes came too slowly while other publishers waited for room to announce theirs"
            )

    def _revoke(self, upload: StreamingPublish, why: str) -> None:
        if upload.revoke is not None:
            self.counts["revoked"] += 1
            upload.revoke(LogFull(why))

    def at_end_of_turn(self, call: Callable[[], None]) -> None:
        """Registers a function that is called at the end of each turn and after each sync."""
        self._at_end.append(call)

    def end_turn(self) -> None:
        """Ends a turn: everything that came at once was taken. Without this call the work is done in later
        turns."""
        if self.direct is not None:
            self.direct.end_turn()
        self.groups.end_turn()
        self.durability.end_turn()
        for call in self._at_end:
            call()

    def apply_backpressure(self, publisher: UploadPublisher) -> None:
        """Pauses a publisher that has just published, if the disk is far behind or full."""
        self.durability.apply_backpressure(publisher)
        if self._large_writes.waiting:
            self._large_writes.apply_backpressure(publisher)

    def stream(self, topic: str, position: int, limit: int) -> list[Buffer]:
        """Returns bytes of the topic's payloads, in sequence, from a position: at most `limit`, fewer for
        many small ones. Positions never move. Only what is on the disk counts. Raises NotKept when the
        position was removed; UsageError when it never existed; LogDamaged."""
        found = self.store.topics.get(topic)
        return self.store.stream(found, position, limit) if found is not None else []

    def is_writing(self, topic: Topic) -> bool:
        """Returns whether messages of the topic are being written to the log."""
        on_their_way = any(upload.topic is topic for upload in self._uploads)
        return on_their_way or bool(self._large_writes.waiting) or self.durability.holds(topic)

    @property
    def is_full(self) -> bool:
        """Whether publishers wait for room on the disk."""
        return bool(self.durability.full or self._writer.full)

    @property
    def full(self) -> str:
        """Why publishers wait for room on the disk, and what holds it; "" if they do not wait."""
        why = self.durability.full or ("no room for a large payload" if self._writer.full else "")
        if not why:
            return ""
        if self._loop.time() > self._held_by_until:
            self._held_by_until = self._loop.time() + _HELD_BY_FOR
            self._held_by = held_by(self)
        return f"{why}; {self._held_by}"

    @property
    def busy(self) -> bool:
        """Whether large messages are being transferred, or a publisher waits for the disk."""
        return bool(self._uploads or self._large_writes.waiting) or self.durability.busy

    def _appended(self, topic: Topic, messages: Sequence[Message], nbytes: int) -> None:
        """Counts messages of a topic, which are in the log if it keeps them, and distributes them."""
        store = self.store
        topic.messages += len(messages)
        topic.nbytes += nbytes
        store.messages += len(messages)
        store.nbytes += nbytes
        if topic.recent is not None:
            topic.recent.add(messages, nbytes)
        self.fanout.deliver(topic, messages, nbytes)
        if self.direct is not None and self.direct.has_route(topic.name):
            for message in messages:
                if message.front not in _ROUTED:
                    self.direct.offer(topic, message)

    def _kept(self, topics: Sequence[Topic]) -> None:
        """Distributes what can be read now: more is on the disk."""
        if self.fanout.behind:
            self.fanout.kept()
        self.groups.kept(topics)
        for call in self._at_end:
            call()

    def _ended(self, upload: StreamingPublish) -> None:
        if upload.broken:
            upload.whole()  # releases what was gathered; no subscriber gets it
            self.counts["broken_off"] += 1
            return
        for counted in (upload.topic, self.store):
            counted.messages += 1
            counted.nbytes += upload.nbytes
        if upload.writing is None:
            self.fanout.deliver_late(upload)

    def _written(
        self, upload: StreamingPublish, on_complete: OnComplete | None, error: TransferError | None
    ) -> None:
        """Appends the record of a large payload whose bytes are all written. Raises LogFull."""
        assert upload.writing is not None
        topic, offset = upload.topic, None
        if self._placed(topic, upload.message, upload.writing, on_complete, error):
            offset = upload.message.offset
            if self.direct is not None and upload.message.front not in _ROUTED:
                self.direct.offer(topic, upload.message, nbytes=upload.nbytes)
        for subscriber in upload.left_out:
            self.fanout.left_out(subscriber, topic, offset)
        if offset is not None:
            self.fanout.wait_for(topic, offset)
            for subscriber in upload.receivers:
                self.fanout.given(subscriber, topic, offset)

    def _written_whole(
        self,
        topic: Topic,
        message: Message,
        writing: BlobWrite,
        on_complete: OnComplete | None,
        error: TransferError | None,
    ) -> None:
        """Appends the record of a large message that came whole."""
        if self._placed(topic, message, writing, on_complete, error):
            self._appended(topic, (message,), message.nbytes)

    def _placed(
        self,
        topic: Topic,
        message: Message,
        writing: BlobWrite,
        on_complete: OnComplete | None,
        error: TransferError | None,
    ) -> bool:
        """Appends the record of a written payload. Raises LogFull. Returns False if the message is not kept;
        its publisher gets the error."""
        try:
            if error is None:
                record = record_of(message, topic.position, blob=True)
                sequence, message.offset = writing.commit(record)
                self.store.grew(topic, writing.nbytes)
                self.durability.appended(topic, message, sequence, on_complete, writing.nbytes)
                return True
        except LogFull:
            raise  # the writer retries
        except TransferError as failed:
            error = failed
            if isinstance(failed, InternalError):
                self.durability.failed(failed)
        _log.error("a message of topic %r is not kept: %s", topic.name, error)
        writing.abandon()
        complete(on_complete, error)
        return False

    # -- subscribing -------------------------------------------------------------------------------------

    def subscribe(self, subscriber: BrokerSubscriber, pattern: TopicPattern) -> None:
        """Subscribes to messages from now on whose topic matches. Idempotent. Raises UsageError if the
        subscriber, or all of them, have too many subscriptions."""
        self.fanout.subscribe(subscriber, pattern)

    def unsubscribe(self, subscriber: BrokerSubscriber, pattern: TopicPattern) -> bool:
        """Ends a subscription. Returns whether there was one."""
        return self.fanout.unsubscribe(subscriber, pattern)

    def unsubscribe_some(self, subscriber: BrokerSubscriber) -> bool:
        """Ends some of its subscriptions, as many as one turn has time for. Returns whether more are left."""
        return self.fanout.unsubscribe_some(subscriber)

    def on_drained(self, subscriber: BrokerSubscriber) -> None:
        """Continues with a subscriber that has written its queue: it gets what it missed."""
        if self._uploads.slow:
            for upload in self._uploads.slow_of(subscriber):
                upload.on_drained(subscriber)
        if subscriber in self.fanout.behind:
            self.fanout.catch_up(subscriber)

    def leave(self, subscriber: BrokerSubscriber) -> None:
        """Removes a subscriber that has disconnected."""
        self.fanout.leave(subscriber)
        for upload in self._uploads.of(subscriber):
            upload.lost(subscriber)

    def tick(self, now: float) -> None:
        """Ends publishers and subscribers that block a large message for too long. Called once a second."""
        for upload in self._uploads.received().union(self._uploads.announced):
            if upload.slow_for(now) >= self._patience and any(map(self._waits, upload.receivers)):
                self._revoke(
                    upload, "its bytes came too slowly, and its receivers had to wait for other messages"
                )
        for upload in self._uploads.held_up():
            for receiver in upload.recheck(now, self._patience):
                self.counts["closed_slow"] += 1
                receiver.close(f"the subscriber read nothing for {self._patience:g} s and blocked others")
        self.groups.tick(full=self.is_full)
        if self.direct is not None:
            self.direct.tick()
        self._remember()

    def _waits(self, receiver: BrokerSubscriber) -> bool:
        """Returns whether the receiver has other messages to receive."""
        return receiver.queued > 0 or receiver in self.fanout.behind

    def _remember(self) -> None:
        found = self.store.remember()
        if found is not None:
            sequence, marks = found

            def kept(error: TransferError | None) -> None:
                if error is None:
                    self.store.remembered(marks)

            self.durability.when_kept(sequence, kept)
