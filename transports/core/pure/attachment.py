"""The common part of both halves of a socket: its streams, its descriptor, its end."""

from __future__ import annotations

import math
import selectors
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from transfer.transports.callbacks import nothing, weakly
from transfer.transports.core import fork
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.outgoing import Outgoing
from transfer.transports.core.pure.pool import Pool
from transfer.transports.core.pure.stream import Stream
from transfer.transports.core.pure.wake import Wake
from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import Closed, ProtocolError

if TYPE_CHECKING:
    from transfer.transports.core.pure.frame import Frame

#: a decoded message: its stream, its frames, and which of them a sink placed
Found = tuple[Any, "list[Frame]", set[int]]


class _Kept:
    """Messages of a receiver. Written without a call, unlike attributes of a socket, so that no signal
    handler runs in between."""

    __slots__ = ("counted", "unread")

    def __init__(self) -> None:
        #: a message for the next receive; or the one of a receive in progress
        self.unread: Found | None = None
        #: the same message, if it was counted already
        self.counted: Found | None = None


class Attachments:
    """The streams of a socket. `_lock` guards the lists; senders wait on `_room`, a condition on it.
    One thread at a time receives, under `_receiving`, which is taken before `_lock`. Hooks are
    called without `_lock`, and with `_receiving` where a receiver found the event: they must not
    receive.
    """

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None:
        flusher.check()
        self.closed = False
        self._socket_type = int(socket_type)
        self._send_mode = int(send_mode)
        self._receive_mode = int(receive_mode)
        self._flusher = flusher
        self._pool = pool
        self._lock = threading.Lock()
        self._itself = weakref.ref(self)
        self._attached: dict[Any, bool] = {}  # every stream, and whether it receives
        self._foreign = 0
        #: descriptor -> the foreign streams that sleep on it
        self._foreign_fds: dict[int, list[Any]] = {}
        # -- for senders
        self._room = threading.Condition(self._lock)
        self._long_wait = 5000
        self._room_count = 0  # grows whenever a sender should check again
        self._senders: list[Any] = []
        #: index of the sender whose turn is next in a round robin
        self._next_sender = 0
        #: the sender that left last, its position, and whether its turn was next
        self._left: tuple[Any, int, bool] | None = None
        self._losses = 0
        self._full: set[Any] = set()  # foreign streams that refused the last message
        # -- for receivers
        self._receiving = threading.Lock()
        self._turns: deque[Any] = deque()  # streams that may have a decoded message
        self._kept = _Kept()
        self._again: deque[Found] = deque()  # messages whose receive was interrupted
        self._wake = Wake()
        try:
            self._selector = selectors.DefaultSelector()
        except OSError as error:
            self._wake.close()
            raise descriptor_error(error, "no descriptors left for a socket") from error
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._watched: dict[Stream, int] = {}
        self._exposed = False  # the program watches the descriptor

    # -- attaching

    def _attach(self, stream: Any, sends: bool, receives: bool) -> None:
        self._flusher.check_process()  # before the lock, which may be held for ever in a forked child
        with self._lock:
            self._check()
            self._attached[stream] = receives
            if sends:
                self._join_round(stream)
            if isinstance(stream, Stream):
                stream._owner_ref = self._itself
                if receives:
                    self._watch(stream)
            else:
                self._foreign += 1
                stream.on_writable = weakly(self, "_has_room", stream)
                if receives:
                    stream.on_readable = weakly(self, "_has_message", stream)
                    self._watch_foreign(stream)
            self._wake_senders()
        if receives and (not isinstance(stream, Stream) or stream._has_decoded):
            self._has_message(stream)  # messages came before the callback was set

    def _detach(self, stream: Any) -> None:
        with self._lock:
            self._remove(stream)
            with suppress(ValueError):  # a receiver takes streams out without the lock
                self._turns.remove(stream)

    def _streams(self) -> list[Any]:
        with self._lock:
            return list(self._attached)

    def _leave_round(self, stream: Any) -> None:
        """Keeps the order of the others. The position is kept, for a stream that returns at once: one that
        waits for its connection is taken out while it gets it."""
        index = self._senders.index(stream)
        if self._next_sender >= len(self._senders):
            self._next_sender = 0
        self._left = stream, index, index == self._next_sender
        if index < self._next_sender:
            self._next_sender -= 1
        del self._senders[index]

    def _join_round(self, stream: Any) -> None:
        left, self._left = self._left, None
        if left is None or left[0] is not stream or left[1] > len(self._senders):
            self._left = left
            self._senders.append(stream)
            return
        _, index, was_next = left
        self._senders.insert(index, stream)
        if was_next:
            self._next_sender = index
        elif index <= self._next_sender:
            self._next_sender += 1

    def _remove(self, stream: Any) -> bool:
        if self._attached.pop(stream, None) is None:
            return False
        if stream in self._senders:
            self._leave_round(stream)
        if isinstance(stream, Stream):
            self._unwatch(stream)
            stream._owner_ref = nothing
        else:
            self._foreign -= 1
            stream.on_readable = stream.on_writable = None
            self._unwatch_foreign(stream)
        self._full.discard(stream)
        self._wake_senders()
        return True

    def _lose(self, stream: Any, error: BaseException) -> None:
        """Detaches a stream that ended. `_on_lost` is called first: it takes the messages left in the stream,
        and sees that no other overtakes them."""
        with self._lock:
            self._losses += 1
            attached = stream in self._attached
        if attached:
            try:
                if isinstance(error, ProtocolError):
                    self._on_refused(stream, error)
            finally:  # a signal handler may raise in there
                self._end_stream(stream, error)

    def _end_stream(self, stream: Any, error: BaseException) -> None:
        if isinstance(error, ProtocolError) and isinstance(stream, Stream):
            stream._fail(error)
        self._on_lost(stream, error)
        with self._lock:
            self._remove(stream)

    def _watch(self, stream: Stream) -> None:
        fd = stream.fd
        if fd >= 0 and stream not in self._watched:
            self._watched[stream] = fd
            self._selector.register(fd, selectors.EVENT_READ, stream)

    def _unwatch(self, stream: Stream) -> None:
        fd = self._watched.pop(stream, -1)
        if fd >= 0:
            self._selector.unregister(fd)

    def _watch_foreign(self, stream: Any) -> None:
        """Foreign streams that share a descriptor share its entry in the selector."""
        for fd in getattr(stream, "wait_fds", ()):
            sharing = self._foreign_fds.setdefault(fd, [])
            if not sharing:
                self._selector.register(fd, selectors.EVENT_READ, sharing)
            sharing.append(stream)

    def _unwatch_foreign(self, stream: Any) -> None:
        for fd in getattr(stream, "wait_fds", ()):
            sharing = self._foreign_fds.get(fd, [])
            if stream in sharing:
                sharing.remove(stream)
                if not sharing:
                    self._selector.unregister(fd)
                    del self._foreign_fds[fd]

    # -- callbacks of streams

    def _opened(self, stream: Outgoing) -> None:
        """A stream got its descriptor."""
        with self._lock:
            if not self.closed and self._attached.get(stream) and isinstance(stream, Stream):
                self._watch(stream)
            self._wake_senders()

    def _closing(self, stream: Outgoing) -> None:
        """The stream closes its descriptor, which must be removed before the number is reused."""
        with self._lock:
            if isinstance(stream, Stream):
                self._unwatch(stream)

    def _has_room(self, stream: Any) -> None:
        with self._lock:
            self._full.discard(stream)
            self._wake_senders()

    def _has_message(self, stream: Any) -> None:
        """From any thread: the stream may have a decoded message."""
        with self._lock:
            if stream not in self._turns:
                # Unread messages of a lost peer come before those of its next connection.
                ended = sum(map(is_ended, self._turns)) if is_ended(stream) else len(self._turns)
                self._turns.insert(ended, stream)
            self._wake.set()

    # -- waking

    def _wake_senders(self) -> None:
        self._room_count += 1
        self._room.notify_all()

    def _notify(self) -> None:
        with self._lock:
            self._full.clear()  # limits may have changed
            self._wake_senders()
            self._wake.set()

    def _signal(self) -> None:
        """Makes the descriptor report whether there is a decoded message."""
        with self._lock:
            if self._turns or self._kept.unread is not None or self._again:
                self._wake.set()
            else:
                self._wake.clear()

    def fileno(self) -> int:
        """A descriptor, readable when `recv` may succeed; a call that finds nothing clears it."""
        self._check()
        self._exposed = True
        with self._lock:
            if self._turns or self._kept.unread is not None or self._again:
                self._wake.set()
        return int(self._selector.fileno())  # those of epoll and kqueue have one

    # -- the end

    def _check(self) -> None:
        if self._flusher.generation != fork.generation:
            raise fork.refuse()
        if self.closed:
            raise self._closed_error()

    def _closed_error(self) -> Closed:
        return Closed("the socket is closed")

    def _close_core(self) -> None:
        """Wakes all waiting calls, which raise Closed. Idempotent, never waits."""
        if self._flusher.generation != fork.generation:
            self.closed = True
            return  # the descriptors are shared with the parent
        with self._lock:
            self.closed = True
            self._wake_senders()
            self._wake.set()
        self._free()

    def _free(self) -> None:
        """Closes the descriptors unless a receiver is inside; then it does so when it leaves."""
        if not self._receiving.acquire(blocking=False):
            return
        try:
            with self._lock:
                for stream in list(self._attached):
                    self._remove(stream)
                self._selector.close()
                self._wake.close()
                self._kept.unread = self._kept.counted = None
                self._again.clear()
                self._turns.clear()
        finally:
            self._receiving.release()

    # -- hooks

    def _on_long_wait(self) -> None:
        """One call has waited for `_long_wait` ms."""

    def _on_refused(self, stream: Any, error: ProtocolError) -> None:
        """See the contract."""

    def _on_lost(self, stream: Any, error: BaseException) -> None:
        """The stream ended or failed; it is not closed. It is detached at the latest when this returns."""


def is_ended(stream: Any) -> bool:
    """Whether it holds the unread messages of a lost peer."""
    return bool(getattr(stream, "ended", False))


def deadline_of(timeout: int) -> float:
    """The monotonic time when `timeout` (ms, -1 endless) expires: 0.0 for at once, inf for never."""
    if timeout == 0:
        return 0.0
    return math.inf if timeout < 0 else time.monotonic() + timeout / 1000
