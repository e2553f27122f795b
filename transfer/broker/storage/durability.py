"""What has to be kept before somebody is told so: appended on the loop, synced beside it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from transfer.log.group_committer import GroupCommitter
from transfer.transports.errors import InDoubt, InternalError, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Message
    from transfer.broker.delivery.streaming_publish import Publisher
    from transfer.broker.delivery.topic import Topic
    from transfer.broker.storage.store import Store

_log = logging.getLogger("transfer.broker")

#: is called on the loop when a message is kept as its topic promises, or with the reason why it is not
OnComplete = Callable[[TransferError | None], None]

#: seconds until messages are synced for which nobody waits
_SYNC_AFTER = 0.05
#: bytes up to which they are synced on the loop itself, if the disk is quick: one message at a time
_FEW = 8 << 10
#: bytes that may wait for the disk before whoever publishes has to
_UNSYNCED = 64 << 20
#: seconds between two tries when the log is full
_FULL_PAUSE = 0.5


class CompleteTogether:
    """Tells once what becomes of several messages: when all are kept, or the first time that one is not."""

    def __init__(self, left: int, on_complete: OnComplete | None) -> None:
        self._left = left
        self._on_complete = on_complete

    def __call__(self, error: TransferError | None) -> None:
        self._left -= 1
        if self._on_complete is not None and (error is not None or not self._left):
            on_complete, self._on_complete = self._on_complete, None
            on_complete(error)


class Durability:
    """Appends messages of durable topics, and tells when they are kept. On the broker's loop.

    appended: called with each message that was appended after all, though the log was full when it came.
    make_room: is called when the log is full; a sync that follows may bring room. kept: called after each
    sync, with the topics of which more is on the disk now. full: why nothing can be kept just now, or "".
    failure: why nothing can be kept any more, until the broker is started again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        appended: Callable[[Topic, Message], None],
        kept: Callable[[Sequence[Topic]], None],
        make_room: Callable[[], None],
    ) -> None:
        self.full = ""
        self.failure: TransferError | None = None
        #: called when it fails, for those who wait elsewhere
        self.at_failure: Callable[[TransferError], None] = lambda error: None
        self._loop = loop
        self._store = store
        self._held_appended = appended
        self._told_kept = kept
        self._make_room = make_room
        self._next_try: asyncio.TimerHandle | None = None
        self._committer = GroupCommitter(
            store.log,
            "transfer-broker-sync",
            lambda sequence: self._on_loop(lambda: self._kept(sequence)),
            lambda error: self._on_loop(lambda: self.failed(error)),
        )
        self._waiting: deque[tuple[int, int, OnComplete | None]] = deque()
        self._grown: deque[tuple[int, Topic, int]] = deque()  # (sequence, topic, offset behind the message)
        self._unsynced = 0  # bytes
        self._newest = -1
        self._wanted = False
        self._due: asyncio.TimerHandle | None = None
        self._held: deque[tuple[Topic, Message, OnComplete | None]] = deque()
        self._paused: list[Publisher] = []

    def append(
        self, topic: Topic, message: Message, on_complete: OnComplete | None, *, hold: bool = True
    ) -> bool:
        """Appends a message. False: the log is full, and it is held until there is room (`appended`). hold
        False: it is not, and LogFull is raised.

        Raises InternalError when the log has failed.
        """
        if self._held:
            if not hold:
                raise LogFull(self.full)
            self._held.append((topic, message, on_complete))
            return False
        try:
            sequence = self._store.append(topic, message)
        except LogFull as error:
            self._say_full(str(error))
            if hold:
                self._held.append((topic, message, on_complete))
            self._wait_for_room()
            if not hold:
                raise
            return False
        except InternalError as error:
            self.failed(error)
            raise
        self.appended(topic, message, sequence, on_complete, message.nbytes)
        return True

    def append_many(
        self, topics: Sequence[Topic], messages: Sequence[Message], on_complete: OnComplete | None
    ) -> bool:
        """The same for several small messages, each with its topic, all or none. told: when all are kept.
        False: nothing was done; give them one by one."""
        if self._held:
            return False
        try:
            sequence = self._store.append_many(topics, messages)
        except LogFull:
            return False
        except InternalError as error:
            self.failed(error)
            raise
        ends = {topic: message.offset or 0 for topic, message in zip(topics, messages, strict=True)}
        self._grown += [(sequence, topic, offset + 1) for topic, offset in ends.items()]
        self.when_kept(sequence, on_complete, sum(message.nbytes for message in messages))
        return True

    def appended(
        self, topic: Topic, message: Message, sequence: int, on_complete: OnComplete | None, nbytes: int
    ) -> None:
        """A message stands in the log, and has its offset: it counts as kept when it is on the disk."""
        self._grown.append((sequence, topic, (message.offset or 0) + 1))
        self.when_kept(sequence, on_complete, nbytes)

    def when_kept(self, sequence: int, on_complete: OnComplete | None, nbytes: int = 0) -> None:
        """Calls `on_complete` when this record is on the disk. None: nobody waits, and it may take a moment
        longer."""
        if self.failure is not None:
            tell(on_complete, self.failure)
            return
        self._newest = sequence
        self._unsynced += nbytes
        self._waiting.append((sequence, nbytes, on_complete))
        if on_complete is not None or self._unsynced > _UNSYNCED // 4:
            if not self._wanted:  # once for all that comes in this turn of the loop
                self._wanted = True
                self._loop.call_soon(self._want)
        elif self._due is None:
            self._due = self._loop.call_later(_SYNC_AFTER, self._sync)

    def pressed(self, publisher: Publisher) -> None:
        """Whoever has just published waits, if the disk is far behind or full."""
        if self._held or self._unsynced > _UNSYNCED:
            publisher.pause()
            self._paused.append(publisher)

    @property
    def share(self) -> float:
        """Of the bytes that may wait for a sync, how many do."""
        return self._unsynced / _UNSYNCED

    @property
    def unsynced(self) -> int:
        """Bytes of payloads that are not on the disk yet."""
        return self._unsynced

    def holds(self, topic: Topic) -> bool:
        """Whether messages of this topic wait for room in the log."""
        return any(one is topic for one, _, _ in self._held)

    @property
    def busy(self) -> bool:
        """Something waits for the disk."""
        return bool(self._waiting or self._held)

    def close(self) -> None:
        """All that was appended is on the disk; what was held is not. Idempotent."""
        if self._due is not None:
            self._due.cancel()
        if self.failure is None and self._newest >= 0:
            self._committer.want(self._newest)
        self._committer.close()

    def end_turn(self) -> None:
        """All that came at once was taken: what somebody waits for is synced now.

        A little on the loop itself, if the disk is quick: to another thread and back takes longer than that.
        What is told of it may bring more that somebody waits for, which then has its own sync.
        """
        if not self._wanted:
            return
        self._wanted = False
        newest = self._newest
        try:
            here = self._unsynced <= _FEW and self._committer.commit_here(newest)
        except TransferError as error:
            self.failed(error)
            return
        if here:
            self._kept(newest)
        else:
            self._committer.want(newest)

    def _on_loop(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # it is closed: the broker has ended
            return

    def _want(self) -> None:
        if self._wanted:
            self._wanted = False
            self._committer.want(self._newest)

    def _sync(self) -> None:
        self._due = None
        self._committer.want(self._newest)

    def _kept(self, sequence: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            _, nbytes, on_complete = waiting.popleft()
            self._unsynced -= nbytes
            tell(on_complete, None)
        topics: dict[Topic, None] = {}
        grown = self._grown
        while grown and grown[0][0] <= sequence:
            _, topic, offset = grown.popleft()
            topic.kept = offset
            topics[topic] = None
        self._told_kept(list(topics))
        if self._held:
            self._try_again()
        self._relieve()

    def failed(self, error: TransferError) -> None:
        """Nothing can be kept any more: all who wait are told. The first error counts. What was appended may
        be kept or may not be; what was not appended is not."""
        if self.failure is not None:
            return
        text = str(error).partition("\n  hint: ")[0]
        doubt = InDoubt(
            text if isinstance(error, InDoubt) else f"what was appended may be kept or may not be: {text}",
            hint="the broker has to be started again; publish the message again, and it may be kept twice",
        )
        if isinstance(error, InDoubt):
            error = InternalError(text, hint=error.hint)
        _log.critical("the broker's log has failed: %s", error)
        self.failure = error
        waiting, self._waiting = self._waiting, deque()
        held, self._held = self._held, deque()
        self._grown.clear()
        self._unsynced, self.full = 0, ""
        for _, _, on_complete in waiting:
            tell(on_complete, doubt)
        for _, _, on_complete in held:
            tell(on_complete, error)
        self._relieve()
        self.at_failure(error)

    def _relieve(self) -> None:
        if not self._held and self._unsynced <= _UNSYNCED:
            paused, self._paused = self._paused, []
            for publisher in paused:
                publisher.resume()

    # -- a full log --------------------------------------------------------------------------------------

    def _say_full(self, why: str) -> None:
        if not self.full:
            _log.warning("%s", why)
        self.full = why

    def _wait_for_room(self) -> None:
        """Room comes back when it is on the disk that something is not needed: by a sync, or in time."""
        try:
            self._make_room()
        except TransferError as error:
            _log.warning("%s", error)
        if self._newest >= 0:
            self._committer.want(self._newest)
        if self._next_try is None:
            self._next_try = self._loop.call_later(_FULL_PAUSE, self._try_again)

    def _try_again(self) -> None:
        if self._next_try is not None:
            self._next_try.cancel()
            self._next_try = None
        held, self._held = self._held, deque()
        while held:
            topic, message, on_complete = held.popleft()
            try:
                sequence = self._store.append(topic, message)
            except LogFull:
                held.appendleft((topic, message, on_complete))
                self._held = held
                self._wait_for_room()
                return
            except TransferError as error:
                tell(on_complete, error)
                continue
            self.appended(topic, message, sequence, on_complete, message.nbytes)
            self._held_appended(topic, message)
        self.full = ""
        self._relieve()


def tell(on_complete: OnComplete | None, error: TransferError | None) -> None:
    """Calls whoever wants to know. One that fails does not keep the others from being told."""
    if on_complete is None:
        return
    try:
        on_complete(error)
    except Exception:  # noqa: BLE001 - the others are told all the same
        _log.exception("a publisher cannot be told what became of a message")


def together(on_complete: Sequence[OnComplete]) -> OnComplete:
    """Calls all of them."""

    def tell_all(error: TransferError | None) -> None:
        for one in on_complete:
            tell(one, error)

    return tell_all
