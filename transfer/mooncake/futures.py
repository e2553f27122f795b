"""The calls that end in `_async`: their futures belong to an event loop, and no thread waits for them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from transfer.mooncake.requests import PendingRequests, Request, Send
from transfer.transports.arguments import wrong
from transfer.transports.errors import Again, Closed

#: seconds: first and longest pause between two tries to send where no peer has room
_SOON, _LATER = 0.0005, 0.02
#: seconds that closing a socket waits until another thread's loop has released the descriptor
_LETTING_GO = 1.0

#: seconds between two checks for expired requests, at least
_GRAIN = 0.005

Loop = AbstractEventLoop | None


class WaitingReply(NamedTuple):
    """A call that waits for room. late: makes its result after the timeout; None: an error."""

    future: Future[Any]
    attempt: Callable[[Future[Any]], None]
    until: float
    late: Callable[[Again], Any] | None


class Lane:
    """The calls of one event loop on one socket, in order. Used only in the loop's thread once it is made."""

    def __init__(self, loop: AbstractEventLoop, requests: PendingRequests | None, fd: int) -> None:
        self.loop = loop
        self._requests = requests
        self._fd = fd
        self._waiting: deque[WaitingReply] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._pause = _SOON
        self._going = False
        #: open requests, and the first deadline among them
        self._open: dict[Request, Future[Any]] = {}
        self._first = math.inf
        self._idle = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watched = False

    def call(self, waiting: WaitingReply) -> None:
        """Makes the call after those that wait."""
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._go()

    def _go(self) -> None:
        if self._going:  # it may end other requests, which call this again
            return
        self._going = True
        try:
            self._try_all()
        finally:
            self._going = False

    def _try_all(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._waiting:
            future, attempt, until, late = self._waiting[0]
            if not future.done():
                try:
                    attempt(future)
                except Again as error:
                    if time.monotonic() < until:
                        self._retry = self.loop.call_later(self._pause, self._go)
                        self._pause = min(2 * self._pause, _LATER)
                        return
                    _end(future, error, late)
                except Exception as error:  # noqa: BLE001 - the future gets it
                    future.set_exception(error)
            self._waiting.popleft()
            self._pause = _SOON

    # -- replies -------------------------------------------------------------------------------

    def ask(
        self, request: Request, future: Future[Any], send: Send, result: Callable[[Request], Any]
    ) -> None:
        """Sends a request; its reply goes to the future. Raises Again if there is no room for it."""
        assert self._requests is not None
        if request.on_done is None:  # its first try
            request.on_done = partial(self._in_loop, self._answered, future, result)
            request.gone = lambda: future.done() or self.loop.is_closed()
            request.wake = partial(self._in_loop, self._go)
        self._requests.try_to_begin(request, send)
        self._idle = 0
        self._open[request] = future
        if not self._watched:
            self._watched = True
            self.loop.add_reader(self._fd, self._readable)
        if self._timer is None or request.deadline < self._first:
            self._expire()

    def _in_loop(self, call: Callable[..., object], *arguments: Any) -> None:
        if asyncio._get_running_loop() is self.loop:
            call(*arguments)
            return
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call, *arguments)

    def _answered(self, future: Future[Any], result: Callable[[Request], Any], request: Request) -> None:
        self._open.pop(request, None)
        if not future.done():
            try:
                future.set_result(result(request))
            except Exception as error:  # noqa: BLE001 - the future gets it
                future.set_exception(error)
        if self._waiting:
            self._go()

    def _readable(self) -> None:
        assert self._requests is not None
        self._requests.read_now()
        if not self._open:  # the next one may follow at once: only then the descriptor is released
            self._idle += 1
            if self._idle > 1:
                self._stop_watching()

    def _expire(self) -> None:
        """Ends requests that have expired or were cancelled."""
        assert self._requests is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        for request, future in list(self._open.items()):
            if (future.done() or request.deadline <= now) and self._requests.give_up(request):
                self._open.pop(request, None)
                if not future.done():
                    future.set_exception(Again("no reply arrived in time"))
        self._first = min((request.deadline for request in self._open), default=math.inf)
        if self._first < math.inf:
            self._timer = self.loop.call_later(max(_GRAIN, self._first - now), self._expire)

    def _stop_watching(self) -> None:
        if self._watched:
            self._watched = False
            self.loop.remove_reader(self._fd)

    def close(self) -> None:
        """Ends all calls: the socket is closed."""
        self._stop_watching()
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(Closed("the socket is closed"))


class Futures:
    """Makes the calls of one socket for any number of event loops. Thread-safe."""

    def __init__(self, socket: Any, requests: PendingRequests | None) -> None:
        self._socket, self._requests = socket, requests
        self._lanes: dict[AbstractEventLoop, Lane] = {}
        self._lock = threading.Lock()
        self._closed = False

    def submit(
        self,
        loop: Loop,
        attempt: Callable[[Lane, Future[Any]], None],
        seconds: float,
        late: Callable[[Again], Any] | None = None,
    ) -> Future[Any]:
        """Returns a future of the loop (None: the running one). `attempt` ends it, now or later, or raises
        Again.

        Calls of one loop are made in order. seconds: how long a call may wait for room.
        """
        if not isinstance(loop, AbstractEventLoop | None):
            raise wrong("loop", loop, "an event loop of asyncio, or None for the running one")
        running = asyncio._get_running_loop()
        loop = loop or running or asyncio.get_running_loop()  # which raises
        lane = self._lanes.get(loop) or self._new(loop)
        future = loop.create_future()
        until = float("inf") if seconds < 0 else time.monotonic() + seconds
        waiting = WaitingReply(future, lambda future: attempt(lane, future), until, late)
        if loop is running:
            lane.call(waiting)
        else:
            loop.call_soon_threadsafe(lane.call, waiting)
        return future

    def _new(self, loop: AbstractEventLoop) -> Lane:
        with self._lock:
            if self._closed:
                raise Closed("the socket is closed")
            self._lanes = {known: lane for known, lane in self._lanes.items() if not known.is_closed()}
            if self._requests is not None:
                self._requests.end_over()
            fd = -1 if self._requests is None else self._socket.fileno()
            lane = self._lanes[loop] = Lane(loop, self._requests, fd)
            return lane

    def close(self) -> None:
        """Removes the descriptor from all loops, before it is closed. Idempotent."""
        with self._lock:
            self._closed = True
            lanes, self._lanes = self._lanes, {}
        for loop, lane in lanes.items():
            if asyncio._get_running_loop() is loop or not loop.is_running():
                lane.close()
                continue
            closed = threading.Event()

            def close(lane: Lane = lane, closed: threading.Event = closed) -> None:
                lane.close()
                closed.set()

            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(close)
                closed.wait(_LETTING_GO)


def _end(future: Future[Any], error: Again, late: Callable[[Again], Any] | None) -> None:
    if late is None:
        future.set_exception(error)
    else:
        future.set_result(late(error))
