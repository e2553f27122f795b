"""The thread that writes what senders left: coalesced messages, full kernels, credits."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transports.errors import Closed
from transports.twin import fork

if TYPE_CHECKING:
    from transports.twin.stream import Stream

Released = Callable[[BaseException | None], None]

#: how long a message may wait for company, seconds
GATHER = 100e-6
#: the least time between two credits of a stream, seconds
CREDIT_INTERVAL = 0.020


class Flusher:
    """The I/O thread of a context. Thread-safe.

    It writes what streams have pending 100 µs after it was buffered, drains streams whose kernel
    buffer was full, and sends credits. The compiled one never takes the GIL; this one must.
    The thread starts with the first stream that needs it.
    """

    def __init__(self) -> None:
        fork.watch()
        self.generation = fork.generation
        # Reentrant: the collector may run a destructor that ends up here inside any statement.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._awake = False  # the thread looks at the lists before it sleeps again
        self._reap = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._pending: list[Stream] = []
        self._full: dict[int, Stream] = {}
        self._credits: dict[Stream, None] = {}
        self._credit_due = 0.0
        self._finished: list[tuple[Released, BaseException | None]] = []

    # -- for the owner

    def fileno(self) -> int:
        """Readable when `reap()` has something to do."""
        return self._reap

    def reap(self) -> None:
        """Calls the `released` callbacks that are due, in this thread."""
        if self.generation != fork.generation:
            return
        with self._lock:
            finished, self._finished = self._finished, []
            if finished and self._reap >= 0:
                os.eventfd_read(self._reap)
        for released, error in finished:
            released(error)

    def close(self) -> None:
        """Joins the thread and calls the last callbacks. Streams must be closed before. Idempotent."""
        if self.generation != fork.generation:
            return  # the descriptors are the parent's as well; the thread is not here
        with self._lock:
            closing, self._closed = not self._closed, True
            thread = self._thread
            self._wake_thread()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.reap()
        if closing:
            with self._lock:
                os.close(self._reap)
                self._reap = -1
                if self._epoll is not None:
                    self._epoll.close()
                    os.close(self._wake)
                    self._wake = -1

    # -- for streams

    def check(self) -> None:
        """Raises ForkedError in a child of the process that made this, Closed after `close`."""
        if self.generation != fork.generation:
            raise fork.refuse()
        if self._closed:
            raise Closed("the context is closed")

    def post(self, released: Released, error: BaseException | None) -> None:
        """Leaves a callback for the next `reap`."""
        with self._lock:
            if not self._finished and self._reap >= 0:
                os.eventfd_write(self._reap, 1)
            self._finished.append((released, error))

    def arm(self, stream: Stream) -> None:
        """Writes what the stream has pending 100 µs from now."""
        with self._lock:
            self._pending.append(stream)
            self._start()

    def drain(self, fd: int, stream: Stream) -> None:
        """Writes on when the kernel has room for this descriptor."""
        with self._lock:
            self._start()
            assert self._epoll is not None
            self._full[fd] = stream
            self._epoll.register(fd, select.EPOLLOUT)

    def drained(self, fd: int) -> None:
        """Ends `drain`. The descriptor is still open."""
        with self._lock:
            if self._full.pop(fd, None) is not None and self._epoll is not None:
                self._epoll.unregister(fd)

    def credit(self, stream: Stream) -> None:
        """Tells the peer of this stream what was consumed, within 20 ms."""
        with self._lock:
            if not self._credits:
                self._credit_due = time.monotonic() + CREDIT_INTERVAL
                self._credits[stream] = None
                self._start()
            else:
                self._credits[stream] = None

    def forget(self, stream: Stream) -> None:
        """The stream closes."""
        with self._lock:
            self._credits.pop(stream, None)
            if stream in self._pending:
                self._pending.remove(stream)

    # -- the thread

    def _start(self) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._epoll = select.epoll()
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._epoll.register(self._wake, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name="transfer-flusher", daemon=True)
            self._thread.start()
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._thread is not None and not self._awake:
            self._awake = True
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        epoll = self._epoll
        assert epoll is not None
        while not self._closed:
            timeout: float | None = None
            if self._credits:
                timeout = max(0.0, self._credit_due - time.monotonic())
            events = epoll.poll(timeout)
            if any(fd == self._wake for fd, _ in events):
                os.eventfd_read(self._wake)
                if self._pending:
                    time.sleep(GATHER)
            with self._lock:
                self._awake = False
                pending, self._pending = self._pending, []
                full = [stream for fd, _ in events if (stream := self._full.get(fd)) is not None]
            for stream in pending + full:
                stream._write_pending()
            if self._credits and time.monotonic() >= self._credit_due:
                self._send_credits()

    def _send_credits(self) -> None:
        with self._lock:
            due, self._credits = self._credits, {}
            self._credit_due = time.monotonic() + CREDIT_INTERVAL
        for stream in due:
            if not stream._send_credit():
                # Output is queued: a credit behind it would only be late.
                with self._lock:
                    self._credits[stream] = None
