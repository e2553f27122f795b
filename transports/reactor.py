"""The one Python thread of a context: accept, handshake, reconnect, heartbeats, subscriptions.

Messages never pass through here. The thread starts with the first use, ends in `close`, and sleeps in the
kernel when there is no event.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from transfer.transports.descriptors import descriptor_error
from transfer.transports.errors import Closed, ForkedError, InternalError

# The bits of poll(2), equal for poll and epoll.
READABLE = 1
WRITABLE = 4
ERROR = 8
HANGUP = 16
#: the peer closed its sending side; 0 where the system does not report it
PEER_CLOSED = int(getattr(select, "EPOLLRDHUP", 0))
#: report changes only, not states; 0 where the system does not support it
EDGE = int(getattr(select, "EPOLLET", 0)) & 0xFFFFFFFF

#: cancelled timers are removed from the heap when there are more of them than this, and than live ones
_SWEEP = 64

logger = logging.getLogger("transfer")

_Otherwise = Callable[[], object] | None


class Timer:
    """A later call. `cancel` may be called from any thread, at any time, often."""

    __slots__ = ("_arguments", "_callback", "_reactor", "when")

    def __init__(
        self, reactor: Reactor, when: float, callback: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        self.when = when
        self._reactor = reactor
        self._callback: Callable[..., object] | None = callback
        self._arguments = arguments

    @property
    def cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        """Prevents the call, unless it runs at this moment."""
        if self._reactor.forked:
            return  # a forked child runs no timers
        with self._reactor._lock:
            if self._callback is not None:
                self._clear()
                self._reactor._timer_cancelled()

    def _clear(self) -> None:
        # The callback's objects must not stay alive until the timer would have been due.
        self._callback = None
        self._arguments = ()


class Reactor:
    """Runs callbacks of descriptors and timers in one daemon thread.

    Every method may be called from any thread. Callbacks run one at a time in the reactor's
    thread and must not block. An exception in a callback is logged to the logger "transfer",
    counted in `failures`, and the loop goes on. In a forked child each method but `close` raises ForkedError.
    """

    def __init__(self, name: str = "transfer-reactor") -> None:
        self._name = name
        self.failures = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()  # the collector may end a stream in it, which leaves the reactor
        self._thread: threading.Thread | None = None
        self._poller: _Poller | None = None
        self._wake_read = self._wake_write = -1
        self._woken = False  # a wake-up is on its way: the loop has not read it yet
        self._closed = False
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...], _Otherwise]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._order = itertools.count()
        self._callbacks: dict[int, Callable[[int], object]] = {}

    # -- for all threads -----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def running(self) -> bool:
        """True from the first use of the thread to its end."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def forked(self) -> bool:
        """This process is a forked child: it has no thread, and the locks may be held for ever."""
        return os.getpid() != self._pid

    def in_loop(self) -> bool:
        """True in the reactor's own thread, so in every callback."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def call_soon(
        self, callback: Callable[..., object], *arguments: Any, otherwise: _Otherwise = None
    ) -> None:
        """Runs the callback in the loop, in the order of the calls. Raises Closed, ForkedError.

        `otherwise` is called instead if the loop ends before: so the arguments always have an owner.
        """
        self._check_fork()
        with self._lock:
            self._start()
            self._ready.append((callback, arguments, otherwise))
            self._wake()

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Runs the callback after `delay` seconds, unless the timer is cancelled before."""
        self._check_fork()
        timer = Timer(self, time.monotonic() + max(0.0, delay), callback, arguments)
        with self._lock:
            self._start()
            first = not self._timers or timer.when < self._timers[0][0]
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))
            if first:
                self._wake()
        return timer

    def register(self, fd: int, events: int, callback: Callable[[int], object]) -> None:
        """Calls `callback(events)` when the descriptor has one of `events` (READABLE | WRITABLE |
        PEER_CLOSED | EDGE), or ERROR or HANGUP, which are always reported.

        The caller keeps the descriptor and calls `unregister` before closing it. A callback may come once
        without an event (the number was reused), so it must tolerate EAGAIN.
        """
        self._check_fork()
        with self._lock:
            self._start()
            assert self._poller is not None
            self._poller.register(fd, events)
            self._callbacks[fd] = callback
            self._poller_changed()

    def modify(self, fd: int, events: int) -> None:
        """Sets other events for a registered descriptor; with EDGE, present events are reported again."""
        self._check_fork()
        with self._lock:
            self._check_open()
            if fd in self._callbacks and self._poller is not None:
                self._poller.modify(fd, events)
                self._poller_changed()

    def unregister(self, fd: int) -> bool:
        """False if it was not registered. Does not wait for a callback that runs at this moment."""
        if self.forked:  # the epoll set is the parent's too: leave it alone
            return self._callbacks.pop(fd, None) is not None
        with self._lock:
            if self._callbacks.pop(fd, None) is None or self._poller is None:
                return False
            try:
                self._poller.unregister(fd)
            except OSError:  # closed before it was unregistered: the kernel has removed it already
                return True
            self._poller_changed()
            return True

    def close(self, timeout: float = 5.0) -> None:
        """Ends the loop and joins the thread; drops pending calls. Idempotent.

        In the reactor's own thread it ends the loop after the current callback, without a join.
        """
        if self.forked:
            if not self._closed:
                self._closed = True
                self._release()
            return
        with self._lock:
            already, self._closed = self._closed, True
            thread = self._thread
            if not already and thread is not None:
                self._wake()
        if thread is None or self.in_loop():
            return
        thread.join(timeout)
        if thread.is_alive():
            raise InternalError(
                f"the thread {self._name} did not end within {timeout:g} s",
                hint="a callback blocks: a monitor, a message callback or a name look-up",
            )

    # -- under the lock ------------------------------------------------------------------------

    def _check_fork(self) -> None:
        if self.forked:  # checked before the lock is taken, which may be held for ever in the child
            raise ForkedError(
                "this context was made before fork",
                hint="make the context in the child, or start processes by spawn or forkserver",
            )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the context's reactor is closed")

    def _start(self) -> None:
        self._check_open()
        if self._thread is not None:
            return
        try:
            poller = _Poller()
            try:
                self._wake_read, self._wake_write = _wake_pair()
            except OSError:
                poller.close()
                raise
        except OSError as error:
            raise descriptor_error(error, "no descriptors for the reactor") from error
        self._poller = poller
        self._poller.register(self._wake_read, READABLE)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        if self._wake_write >= 0 and not self._woken and not self.in_loop():
            self._woken = True
            _signal(self._wake_write)

    def _poller_changed(self) -> None:
        # epoll sees changes while it waits; poll(2) has a copy of the set and must begin again. gevent takes
        # epoll away while a program runs.
        if self._poller is not None and not self._poller.is_epoll:
            self._wake()

    def _timer_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _SWEEP and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._poller is not None
        try:
            while not self._closed:
                for fd, events in self._poller.wait(self._timeout()):
                    if fd == self._wake_read:
                        _drain(fd)
                        self._woken = False  # before it looks for what was asked
                    else:
                        self._dispatch(fd, events)
                self._run_ready()
                self._run_due()
        finally:
            with self._lock:
                self._closed = True
                dropped = [otherwise for _, _, otherwise in self._ready]
                self._release()
            for otherwise in dropped:
                if otherwise is not None:
                    self._call(otherwise, ())

    def _timeout(self) -> float | None:
        """Seconds that the loop may sleep; None for endlessly."""
        with self._lock:
            if self._ready or self._closed:
                return 0.0
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
                self._cancelled = max(0, self._cancelled - 1)
            if not self._timers:
                return None
            return max(0.0, self._timers[0][0] - time.monotonic())

    def _dispatch(self, fd: int, events: int) -> None:
        callback = self._callbacks.get(fd)  # an earlier callback of this round may have removed it
        if callback is not None and not self._closed:
            self._call(callback, (events,))

    def _run_ready(self) -> None:
        for _ in range(len(self._ready)):  # calls that these add wait for the next round
            if self._closed:
                return
            callback, arguments, _ = self._ready.popleft()
            self._call(callback, arguments)

    def _run_due(self) -> None:
        now = time.monotonic()
        while not self._closed:
            with self._lock:
                if not self._timers or self._timers[0][0] > now:
                    return
                timer = heapq.heappop(self._timers)[2]
                callback, arguments = timer._callback, timer._arguments
                if callback is None:
                    self._cancelled = max(0, self._cancelled - 1)
                    continue
                timer._clear()
            self._call(callback, arguments)

    def _call(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            if self._closed and isinstance(error, Closed):  # it called a method of this loop, which ends
                return
            # It belongs to one connection or timer; the others must not stop with it.
            self.failures += 1
            logger.exception("a callback of %s failed: %r", self._name, callback)

    def _release(self) -> None:
        self._ready.clear()
        self._timers.clear()
        self._callbacks.clear()
        if self._poller is not None:
            self._poller.close()
            self._poller = None
        for fd in {self._wake_read, self._wake_write} - {-1}:
            os.close(fd)
        self._wake_read = self._wake_write = -1


# --- what the system offers -------------------------------------------------------------------


class _Poller:
    """epoll, or poll(2) where there is no epoll. The time-out is in seconds, None is endless."""

    def __init__(self) -> None:
        self.is_epoll = hasattr(select, "epoll")
        self._poll: Any = select.epoll() if self.is_epoll else select.poll()

    def register(self, fd: int, events: int) -> None:
        self._poll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._poll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        if self.is_epoll:
            return list(self._poll.poll(timeout))
        return list(self._poll.poll(None if timeout is None else timeout * 1000.0))

    def close(self) -> None:
        if self.is_epoll:
            self._poll.close()


def _wake_pair() -> tuple[int, int]:
    """Descriptors to read and to write a wake-up; the same one where there is eventfd."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _signal(fd: int) -> None:
    try:
        os.write(fd, b"\1\0\0\0\0\0\0\0")
    except BlockingIOError:  # so many wake-ups wait already that one more has no effect
        return


def _drain(fd: int) -> None:
    try:
        os.read(fd, 4096)
    except BlockingIOError:
        return
