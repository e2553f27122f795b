"""Acknowledges durable messages once they are on the disk: appends on the loop, syncs on a thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from transfer.log.group_committer import GroupCommitter
from transfer.transports.errors import InDoubt, InternalError, LogFull, TransferError

if TYPE_CHECKING:
    from transfer.broker.core.message import Message
    from transfer.broker.delivery.streaming_publish import UploadPublisher
    from transfer.broker.storage.store import Store
    from transfer.broker.storage.topic import Topic

_log = logging.getLogger("transfer.broker")

#: called on the loop: with None when a message is as durable as its topic promises, else with the error
OnComplete = Callable[[TransferError | None], None]

#: seconds until messages without a waiting publisher are synced
_SYNC_AFTER = 0.05
#: most unsynced bytes for a sync on the loop itself, if the disk is fast: a single message
_SYNC_HERE = 8 << 10
#: unsynced bytes beyond which publishers are paused
MAX_UNSYNCED = 64 << 20
#: seconds between two tries when the log is full
_FULL_PAUSE = 0.5


class BatchCompletion:
    """Calls `on_complete` once for several messages: when all are durable, or at the first error."""

    def __init__(self, left: int, on_complete: OnComplete | None) -> None:
        self._left = left
        self._on_complete = on_complete

    def __call__(self, error: TransferError | None) -> None:
        self._left -= 1
        if self._on_complete is not None and (error is not None or not self._left):
            on_complete, self._on_complete = self._on_complete, None
            on_complete(error)


class Durability:
    """Appends messages of durable topics, and reports when they are on the disk. On the broker's loop.

    appended: called with messages that waited for room in a full log and are appended now.
    make_room: called when the log is full; the next sync may then free room.
    kept: called after each sync, with the topics that have more messages on the disk now.
    full: why the log accepts no messages at the moment, or "".
    failure: the error after which the log accepts no messages until the broker is restarted.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        appended: Callable[[Topic, Sequence[Message], int], None],
        kept: Callable[[Sequence[Topic]], None],
        make_room: Callable[[], None],
    ) -> None:
        self.full = ""
        self.failure: TransferError | None = None
        #: called with the failure, for callers that wait elsewhere
        self.at_failure: Callable[[TransferError], None] = lambda error: None
        self._loop = loop
        self._store = store
        self._on_held_appended = appended
        self._on_kept = kept
        self._make_room = make_room
        self._next_try: asyncio.TimerHandle | None = None
        self._committer = GroupCommitter(
            store.log,
            "transfer-broker-sync",
            partial(self._on_loop, self._kept),
            partial(self._on_loop, self.failed),
        )
        self._waiting: deque[tuple[int, int, OnComplete | None]] = deque()
        self._grown: deque[tuple[int, Topic, int]] = deque()  # (sequence, topic, offset after the message)
        #: bytes of payloads that are not on the disk yet
        self.unsynced = 0
        self._newest = -1
        self._wanted = False
        self._due: asyncio.TimerHandle | None = None
        self._held: deque[tuple[Topic, Message, OnComplete | None]] = deque()
        self._paused: list[UploadPublisher] = []

    def append(
        self, topic: Topic, message: Message, on_complete: OnComplete | None, *, hold: bool = True
    ) -> bool:
        """Appends a message. Returns False if the log is full: the message then waits for room (`appended`).

        hold False: the message does not wait, and LogFull is raised. Raises InternalError if the log has
        failed.
        """
        if self._held:
            if not hold:
                raise LogFull(self.full)
            self._held.append((topic, message, on_complete))
            return False
        try:
            sequence = self._store.append(topic, message)
        except LogFull as error:
            self._set_full(str(error))
            if hold:
                self._held.append((topic, message, on_complete))
            self._wait_for_room()
            if not hold:
                raise
            return False
        except InternalError as error:
            self.failed(error)
            raise
        self._grown.append((sequence, topic, (message.offset or 0) + 1))
        self.when_kept(sequence, on_complete, message.nbytes)
        return True

    def append_many(
        self,
        topics: Sequence[Topic],
        messages: Sequence[Message],
        nbytes: int,
        on_complete: OnComplete | None,
    ) -> bool:
        """Appends several small messages, each to its topic: all or none. nbytes: of all payloads.
        on_complete: is called once, for all. Returns False if none is appended: the caller then appends them
        one by one, which reports the reason."""
        if self._held:
            return False
        try:
            sequence = self._store.append_many(topics, messages)
        except LogFull:
            return False
        except InternalError as error:
            self.failed(error)
            return False
        for topic, last in dict(zip(topics, messages, strict=True)).items():
            self._grown.append((sequence, topic, (last.offset or 0) + 1))
        self.when_kept(sequence, on_complete, nbytes)
        return True

    def appended(
        self, topic: Topic, message: Message, sequence: int, on_complete: OnComplete | None, nbytes: int
    ) -> None:
        """Notes that a message is in the log and has its offset; a sync makes it durable."""
        self._grown.append((sequence, topic, (message.offset or 0) + 1))
        self.when_kept(sequence, on_complete, nbytes)

    def when_kept(self, sequence: int, on_complete: OnComplete | None, nbytes: int = 0) -> None:
        """Calls `on_complete` when this record is on the disk. None: the sync may take a moment longer."""
        if self.failure is not None:
            complete(on_complete, self.failure)
            return
        self._newest = sequence
        self.unsynced += nbytes
        self._waiting.append((sequence, nbytes, on_complete))
        if on_complete is not None or self.unsynced > MAX_UNSYNCED // 4:
            if not self._wanted:  # one sync for all messages of this loop iteration
                self._wanted = True
                self._loop.call_soon(self._want)
        elif self._due is None:
            self._due = self._loop.call_later(_SYNC_AFTER, self._sync)

    def apply_backpressure(self, publisher: UploadPublisher) -> None:
        """Pauses the publisher of the last message if the disk is slow or the log is full."""
        if self._held or self.unsynced > MAX_UNSYNCED:
            publisher.pause()
            self._paused.append(publisher)

    @property
    def share(self) -> float:
        """The unsynced bytes, as a fraction of their limit."""
        return self.unsynced / MAX_UNSYNCED

    def holds(self, topic: Topic) -> bool:
        """Whether messages of this topic wait for room in the log."""
        return any(one is topic for one, _, _ in self._held)

    @property
    def busy(self) -> bool:
        """Whether messages wait for the disk."""
        return bool(self._waiting or self._held)

    def close(self) -> None:
        """Syncs all appended messages; held ones are not written. Idempotent."""
        if self._due is not None:
            self._due.cancel()
        if self.failure is None and self._newest >= 0:
            self._committer.want(self._newest)
        self._committer.close()

    def end_turn(self) -> None:
        """Ends a loop iteration: syncs the messages whose publishers wait.

        Few bytes are synced on the loop itself if the disk is fast, since a switch to the sync thread takes
        longer. A callback may publish further messages, which have a separate sync.
        """
        if not self._wanted:
            return
        self._wanted = False
        newest = self._newest
        try:
            here = self.unsynced <= _SYNC_HERE and self._committer.commit_here(newest)
        except TransferError as error:
            self.failed(error)
            return
        if here:
            self._kept(newest)
        else:
            self._committer.want(newest)

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
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
            self.unsynced -= nbytes
            if on_complete is not None:
                complete(on_complete, None)
        topics: dict[Topic, None] = {}
        grown = self._grown
        while grown and grown[0][0] <= sequence:
            _, topic, offset = grown.popleft()
            topic.kept = offset
            topics[topic] = None
        self._on_kept(list(topics))
        if self._held:
            self._try_again()
        if self._paused:
            self._resume_publishers()

    def failed(self, error: TransferError) -> None:
        """Ends with an error: all waiting callbacks get it; later errors are ignored.
        Appended messages get InDoubt, as they may be on the disk. Messages not appended yet get `error`."""
        if self.failure is not None:
            return
        text = str(error).partition("\n  hint: ")[0]
        doubt = InDoubt(
            text if isinstance(error, InDoubt) else f"the log may or may not have kept the message: {text}",
            hint="restart the broker and publish the message again; it may then be stored twice",
        )
        if isinstance(error, InDoubt):
            error = InternalError(text, hint=error.hint)
        _log.critical("the broker's log has failed: %s", error)
        self.failure = error
        waiting, self._waiting = self._waiting, deque()
        held, self._held = self._held, deque()
        self._grown.clear()
        self.unsynced, self.full = 0, ""
        for _, _, on_complete in waiting:
            complete(on_complete, doubt)
        for _, _, on_complete in held:
            complete(on_complete, error)
        self._resume_publishers()
        self.at_failure(error)

    def _resume_publishers(self) -> None:
        if not self._held and self.unsynced <= MAX_UNSYNCED:
            paused, self._paused = self._paused, []
            for publisher in paused:
                publisher.resume()

    # -- a full log --------------------------------------------------------------------------------------

    def _set_full(self, why: str) -> None:
        if not self.full:
            _log.warning("%s", why)
        self.full = why

    def _wait_for_room(self) -> None:
        """Waits until segments can be freed: after a sync of acknowledgements, or by retention."""
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
                complete(on_complete, error)
                continue
            self.appended(topic, message, sequence, on_complete, message.nbytes)
            self._on_held_appended(topic, (message,), message.nbytes)
        self.full = ""
        self._resume_publishers()


def complete(on_complete: OnComplete | None, error: TransferError | None) -> None:
    """Calls `on_complete`, if given. Logs its exceptions, so that the other callbacks are called."""
    if on_complete is None:
        return
    try:
        on_complete(error)
    except Exception:  # noqa: BLE001 - the other callbacks must be called
        _log.exception("the completion callback of a message raised")


def complete_all(callbacks: Sequence[OnComplete]) -> OnComplete:
    """Returns one callback that calls all of these."""

    def on_complete(error: TransferError | None) -> None:
        for one in callbacks:
            complete(one, error)

    return on_complete
