"""Large messages that came whole: a thread writes them, so that the loop need not wait for the disk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.broker.storage.blob_writer import BlobWrite
from transfer.broker.storage.durability import tell
from transfer.transports.errors import LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.streaming_publish import Publisher
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.storage.blob_writer import BlobWriterThread
    from transfer.broker.storage.durability import OnComplete
    from transfer.broker.storage.store import Store

_log = logging.getLogger("transfer.broker")

#: payloads from so many bytes on are written beside the loop
LARGE = 1 << 20
#: bytes that may wait here before whoever publishes has to
_MOST = 64 << 20


class _Waiting:
    """A message that waits. writing: of a large one; it is on its way to the disk."""

    __slots__ = ("message", "on_complete", "writing")

    def __init__(self, message: Message, on_complete: OnComplete | None) -> None:
        self.message = message
        self.on_complete = on_complete
        self.writing: BlobWrite | None = None

    def pause(self) -> None:
        """See passage.Publisher: whoever published it waits by `pressed`."""

    def resume(self) -> None:
        """See `pause`."""


class LargeWriteQueue:
    """Messages that are written beside the loop, and those of the same topics behind them, which keep their
    order. On the broker's loop.

    append: takes a small message when its turn comes; it may raise. written: a large one is written, and its
    record can be appended; raises LogFull when it is to be tried again.
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
        self._waiting: dict[Topic, deque[_Waiting]] = {}
        self._nbytes = 0
        self._paused: list[Publisher] = []

    @property
    def busy(self) -> bool:
        """Something waits."""
        return bool(self._waiting)

    def takes(self, topic: Topic, nbytes: int) -> bool:
        """Whether a message of this topic goes this way."""
        return nbytes >= LARGE or topic in self._waiting

    def take(
        self, topic: Topic, message: Message, on_complete: OnComplete | None, *, hold: bool = True
    ) -> None:
        """Takes a message for a topic that keeps it. hold False: a large one that a full log cannot take is
        given up. Raises UsageError when it never fits."""
        one = _Waiting(message, on_complete)
        if message.nbytes >= LARGE:
            self._store.check_room(message.nbytes)
            one.writing = self._begin(topic, one, hold)
        self._nbytes += message.nbytes
        self._waiting.setdefault(topic, deque()).append(one)

    def pressed(self, publisher: Publisher) -> None:
        """Whoever has just published waits, if much does."""
        if self._nbytes > _MOST:
            publisher.pause()
            self._paused.append(publisher)

    def failed(self, error: TransferError) -> None:
        """Nothing can be kept any more: all who wait are told."""
        waiting, self._waiting, self._nbytes = self._waiting, {}, 0
        for one in (one for queue in waiting.values() for one in queue):
            if one.writing is not None:
                one.writing.abandon()
            tell(one.on_complete, error)
        self._relieve()

    def close(self) -> None:
        """What is written has its place; what is not, the log was too full for. The thread has ended."""
        for topic, waiting in list(self._waiting.items()):
            while self._waiting.get(topic):  # none, when the log fails by it
                writing = waiting[0].writing
                try:
                    self._end(topic, waiting[0], writing.failure if writing is not None else None)
                except TransferError as error:
                    _log.error("messages of topic %r are not kept: %s", topic.name, error)
                    break
        self._waiting.clear()

    def _begin(self, topic: Topic, one: _Waiting, hold: bool) -> BlobWrite:
        nbytes = one.message.nbytes
        writing = BlobWrite(
            self._writer,
            lambda: self._store.log.blob(topic.log_name, nbytes),
            one,
            lambda error: self._end(topic, one, error),
            hold=hold,
        )
        for part in one.message.parts:
            writing.write(part)
        writing.finish()
        return writing

    def _end(self, topic: Topic, one: _Waiting, error: TransferError | None) -> None:
        """A large message is written, and those behind it have their turn, up to the next one. Raises
        LogFull: it is tried again."""
        waiting = self._waiting.get(topic)
        if waiting is None or one not in waiting:
            return  # the log has failed meanwhile
        if waiting[0] is not one and error is None:
            raise LogFull("a message before it waits for room in the log")
        if waiting[0] is not one:
            assert one.writing is not None
            waiting.remove(one)
            self._nbytes -= one.message.nbytes
            self._written(topic, one.message, one.writing, one.on_complete, error)
            return
        self._take_turn(topic, one, error)
        while waiting and self._waiting.get(topic) is waiting and waiting[0].writing is None:
            self._take_turn(topic, waiting[0], None)
        if not waiting and self._waiting.get(topic) is waiting:
            del self._waiting[topic]
        self._relieve()

    def _take_turn(self, topic: Topic, one: _Waiting, error: TransferError | None) -> None:
        """The first one of a topic. It does not wait any more, should the log fail by it."""
        waiting, nbytes = self._waiting[topic], one.message.nbytes
        waiting.popleft()
        self._nbytes -= nbytes
        try:
            if one.writing is not None:
                self._written(topic, one.message, one.writing, one.on_complete, error)
            else:
                self._append(topic, one.message, one.on_complete)
        except LogFull:
            waiting.appendleft(one)
            self._nbytes += nbytes
            raise
        except TransferError as failed:
            tell(one.on_complete, failed)

    def _relieve(self) -> None:
        if self._nbytes <= _MOST:
            paused, self._paused = self._paused, []
            for publisher in paused:
                publisher.resume()
