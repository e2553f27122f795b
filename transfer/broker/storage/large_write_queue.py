"""Writes large complete messages on a thread, so that the loop does not block on the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.storage.blob_writer import BlobWrite
from transfer.broker.storage.durability import complete
from transfer.transports.errors import LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.streaming_publish import UploadPublisher
    from transfer.broker.storage.blob_writer import BlobWriterThread
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")

#: payloads of at least this size are written by the thread
LARGE = 1 << 20
#: queued bytes beyond which publishers are paused
_MAX_QUEUED = 64 << 20


class _Queued:
    """A queued message. blob_write: of a large message; the thread writes it."""

    __slots__ = ("blob_write", "message", "on_complete")

    def __init__(self, message: Message, on_complete: OnComplete | None) -> None:
        self.message = message
        self.on_complete = on_complete
        self.blob_write: BlobWrite | None = None

    def pause(self) -> None:
        """Does nothing: `apply_backpressure` pauses the publisher."""

    def resume(self) -> None:
        """Does nothing, as `pause`."""


class LargeWriteQueue:
    """Queues large messages for the disk, and the messages after them in the same topics, in order.

    On the broker's loop. append: appends a small message when it is next in its topic; may raise.
    written: called when a large message is written and its record can be appended; raises LogFull to be
    called again.
    """

    def __init__(
        self,
        writer: BlobWriterThread,
        store: Store,
        append: Callable[[Topic, Message, OnComplete | None], object],
        written: Callable[[Topic, Message, BlobWrite, OnComplete | None, TransferError | None], None],
    ) -> None:
        self._writer = writer
        self._store = store
        self._append = append
        self._written = written
        #: queued messages, and those behind them in their topics
        self.waiting: dict[Topic, deque[_Queued]] = {}
        self._nbytes = 0
        self._paused: list[UploadPublisher] = []

    def take(
        self, topic: Topic, message: Message, on_complete: OnComplete | None, *, hold: bool = True
    ) -> None:
        """Queues a message of a durable topic. Raises UsageError if it can never fit.
        hold False: a large message that does not fit into a full log fails."""
        one = _Queued(message, on_complete)
        if message.nbytes >= LARGE:
            self._store.check_room(message.nbytes)
            one.blob_write = self._begin(topic, one, hold)
        self._nbytes += message.nbytes
        self.waiting.setdefault(topic, deque()).append(one)

    def apply_backpressure(self, publisher: UploadPublisher) -> None:
        """Pauses the publisher of the last message if too many bytes are queued."""
        if self._nbytes > _MAX_QUEUED:
            publisher.pause()
            self._paused.append(publisher)

    def failed(self, error: TransferError) -> None:
        """Ends with an error, which all queued messages get."""
        waiting, self.waiting, self._nbytes = self.waiting, {}, 0
        for one in (one for queue in waiting.values() for one in queue):
            if one.blob_write is not None:
                one.blob_write.abandon()
            complete(one.on_complete, error)
        self._resume_publishers()

    def close(self) -> None:
        """Appends the written messages; the others did not fit into the log.
        Call it after the thread's end."""
        for topic, waiting in list(self.waiting.items()):
            while self.waiting.get(topic):  # the queue is gone if the log fails in `_end`
                blob_write = waiting[0].blob_write
                try:
                    self._end(topic, waiting[0], blob_write.failure if blob_write is not None else None)
                except TransferError as error:
                    _log.error("queued messages of topic %r are lost: %s", topic.name, error)
                    break
        self.waiting.clear()

    def _begin(self, topic: Topic, one: _Queued, hold: bool) -> BlobWrite:
        nbytes = one.message.nbytes
        blob_write = BlobWrite(
            self._writer,
            lambda: self._store.log.blob(topic.log_name, nbytes),
            one,
            lambda error: self._end(topic, one, error),
            hold=hold,
        )
        for part in one.message.parts:
            blob_write.write(part)
        blob_write.finish()
        return blob_write

    def _end(self, topic: Topic, one: _Queued, error: TransferError | None) -> None:
        """Appends a written large message, and the small ones queued after it.
        Raises LogFull: the writer then calls it again."""
        waiting = self.waiting.get(topic)
        if waiting is None or one not in waiting:
            return  # the log has failed in the meantime
        if waiting[0] is not one and error is None:
            raise LogFull("a message before it waits for room in the log")
        if waiting[0] is not one:
            assert one.blob_write is not None
            waiting.remove(one)
            self._nbytes -= one.message.nbytes
            self._written(topic, one.message, one.blob_write, one.on_complete, error)
            return
        self._append_first(topic, one, error)
        while waiting and self.waiting.get(topic) is waiting and waiting[0].blob_write is None:
            self._append_first(topic, waiting[0], None)
        if not waiting and self.waiting.get(topic) is waiting:
            del self.waiting[topic]
        self._resume_publishers()

    def _append_first(self, topic: Topic, one: _Queued, error: TransferError | None) -> None:
        """Appends a topic's first message. Dequeues it before, as the log may fail in the call."""
        waiting, nbytes = self.waiting[topic], one.message.nbytes
        waiting.popleft()
        self._nbytes -= nbytes
        try:
            if one.blob_write is not None:
                self._written(topic, one.message, one.blob_write, one.on_complete, error)
            else:
                self._append(topic, one.message, one.on_complete)
        except LogFull:
            waiting.appendleft(one)
            self._nbytes += nbytes
            raise
        except TransferError as failed:
            complete(one.on_complete, failed)

    def _resume_publishers(self) -> None:
        if self._nbytes <= _MAX_QUEUED:
            paused, self._paused = self._paused, []
            for publisher in paused:
                publisher.resume()
