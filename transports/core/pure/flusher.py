"""The thread that writes the rest of senders' output: gathered messages, full kernels, credits."""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer.transports.core import fork
from transfer.transports.core.pure.wake import Wake
from transfer.transports.errors import Closed

if TYPE_CHECKING:
    from transfer.transports.core.pure.outgoing import Outgoing

Released = Callable[[BaseException | None], None]

#: how long a message may wait to be gathered with others, seconds
_GATHER = 100e-6
#: the least time between two credits of a stream, seconds
_CREDIT_INTERVAL = 0.020


class Flusher:
    """The I/O thread of a context. Thread-safe.

    It writes what streams have pending 100 µs after it was buffered, drains streams whose kernel
    buffer was full, and sends credits. The compiled one never takes the GIL; this one must.
    The thread starts with the first stream that needs it.
    """

    def __init__(self) -> None:
        fork.watch()
        self.generation = fork.generation
        # Reentrant: the collector may run a destructor that calls this class inside any statement.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._selector: selectors.BaseSelector | None = None  # made with the thread
        self._wake = Wake()
        try:
            self._due = Wake()
        except BaseException:
            self._wake.close()
            raise
        self._pending: list[Outgoing] = []
        self._credits: dict[Outgoing, None] = {}
        self._credit_due = 0.0
        self._finished: list[tuple[Released, BaseException | None]] = []

    # -- for the owner

    def fileno(self) -> int:
        """Readable when `reap()` has work."""
        return self._due.fileno()

    def reap(self) -> None:
        """Calls the pending `released` callbacks, in this thread."""
        if self.generation != fork.generation:
            return
        with self._lock:
            finished, self._finished = self._finished, []
            self._due.clear()
        for released, error in finished:
            released(error)

    def close(self) -> None:
        """Joins the thread and calls the last callbacks. Streams must be closed before. Idempotent."""
        if self.generation != fork.generation:
            return  # the descriptors are the parent's as well; the thread is not here
        with self._lock:
            self._closed = True
            thread = self._thread
            self._wake.set()
        if thread is not None and thread.ident and thread is not threading.current_thread():
            thread.join()
        self.reap()
        with self._lock:
            self._due.close()
            self._wake.close()
            if self._selector is not None:
                self._selector.close()
                self._selector = None

    # -- for streams

    def check_process(self) -> None:
        """Raises ForkedError in a child of the process that made this."""
        if self.generation != fork.generation:
            raise fork.refuse()

    def check(self) -> None:
        """Raises ForkedError in a child of the process that made this, Closed after `close`."""
        self.check_process()
        if self._closed:
            raise Closed("the context is closed")

    def post(self, released: Released, error: BaseException | None) -> None:
        """Leaves a callback for the next `reap`."""
        with self._lock:
            self._due.set()
            self._finished.append((released, error))

    def arm(self, stream: Outgoing) -> None:
        """Writes the stream's pending output 100 µs from now."""
        with self._lock:
            self._pending.append(stream)
            self._start()

    def drain(self, fd: int, stream: Outgoing) -> None:
        """Continues to write when the kernel has room for this descriptor."""
        with self._lock:
            self._start()
            if self._selector is not None:
                self._selector.register(fd, selectors.EVENT_WRITE, stream)

    def drained(self, fd: int) -> None:
        """Ends `drain`, also one that was interrupted. The descriptor is still open."""
        with self._lock:
            if self._selector is not None and fd in self._selector.get_map():
                self._selector.unregister(fd)

    def credit(self, stream: Outgoing) -> None:
        """Reports the consumed messages to the peer of this stream, within 20 ms."""
        with self._lock:
            if not self._credits:
                self._credit_due = time.monotonic() + _CREDIT_INTERVAL
                self._credits[stream] = None
                self._start()
            else:
                self._credits[stream] = None

    def forget(self, stream: Outgoing) -> None:
        """The stream closes."""
        with self._lock:
            self._credits.pop(stream, None)
            if stream in self._pending:
                self._pending.remove(stream)

    # -- the thread

    def _start(self) -> None:
        if self._closed:
            return
        # Each step may be the last one before an interrupt: the next call goes on from there.
        if self._selector is None:
            selector = selectors.DefaultSelector()
            selector.register(self._wake, selectors.EVENT_READ)
            self._selector = selector
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._selector,), name="transfer-flusher", daemon=True
            )
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def _run(self, selector: selectors.BaseSelector) -> None:
        while not self._closed:
            timeout: float | None = None
            if self._credits:
                timeout = max(0.0, self._credit_due - time.monotonic())
            ready = [key.data for key, _ in selector.select(timeout) if key.data is not None]
            if self._pending:
                time.sleep(_GATHER)
            with self._lock:
                self._wake.clear()
                pending, self._pending = self._pending, []
            busy = [stream for stream in dict.fromkeys(pending + ready) if not stream._write_pending()]
            if busy:  # another thread writes there, perhaps for long: other streams do not wait
                with self._lock:
                    self._pending += busy
                    self._wake.set()
            if self._credits and time.monotonic() >= self._credit_due:
                self._send_credits()

    def _send_credits(self) -> None:
        with self._lock:
            due, self._credits = self._credits, {}
            self._credit_due = time.monotonic() + _CREDIT_INTERVAL
        for stream in due:
            if not stream._send_credit():
                with self._lock:
                    self._credits[stream] = None
