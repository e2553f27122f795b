"""The futures of one socket, which are tried again when the socket may be ready."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from transfer.constants import POLLIN
from transfer.patterns.base import ReceiveMode
from transfer.sockets.connections.no_peer import LongWait
from transfer.transports.errors import Again

Attempt = Callable[[], Any]

#: seconds: first and longest pause between two tries where no descriptor signals readiness
_SOON, _LATER = 0.001, 0.02


class Waiter:
    """A future and the call that makes its result; the call raises Again while it would block."""

    __slots__ = ("attempt", "future")

    def __init__(self, future: asyncio.Future[Any], attempt: Attempt) -> None:
        self.future = future
        self.attempt = attempt

    def try_once(self) -> bool:
        """Tries the call. Returns True if the future is done, now or before (cancelled, timed out)."""
        if self.future.done():
            return True
        try:
            result = self.attempt()
        except Again:
            return False
        except Exception as error:  # noqa: BLE001 - the future gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        return True


class Watch:
    """All waiters of one socket. Used from one event loop at a time; not thread-safe.

    Receivers are served in order, and so are senders; pollers only look. A cancelled waiter takes no message.
    """

    def __init__(self, sync: Any) -> None:
        self._sync = sync
        self._only_sends = sync._pattern.receive_mode is ReceiveMode.NONE
        self._loop: asyncio.AbstractEventLoop | None = None
        self.receivers: deque[Waiter] = deque()
        self.senders: deque[Waiter] = deque()
        self.pollers: deque[Waiter] = deque()
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None
        self._pause = _SOON

    def begin(
        self, queue: deque[Waiter], attempt: Attempt, timeout: float, at_end: Callable[[Any], None]
    ) -> asyncio.Future[Any]:
        """Returns a future for `attempt`, tried at once unless the queue has earlier ones.

        timeout: seconds, negative: without limit, 0: a single try. at_end(future) ends it when the time is
        over.
        """
        loop = self._enter()
        future = loop.create_future()
        waiter = Waiter(future, attempt)
        if (not queue or timeout == 0) and waiter.try_once():
            return future
        if timeout == 0:
            at_end(future)
            return future
        queue.append(waiter)
        waiting = LongWait(loop, self._sync)
        future.add_done_callback(lambda _: waiting.close())
        if timeout > 0:
            handle = loop.call_later(timeout, _end, future, at_end)
            future.add_done_callback(lambda _: handle.cancel())
        self._pause = _SOON
        self._arm()
        return future

    def at_once(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any] | None:
        """Returns the future of a call that need not wait, as most; None: `begin` has to try it."""
        loop = asyncio.get_running_loop()  # before the call: without a loop its message would be lost
        try:
            result = call(*arguments)
        except Exception:  # noqa: BLE001 - `begin` tries again, and puts an error into the future
            return None
        future = loop.create_future()
        future.set_result(result)
        return future

    def amend(self, future: asyncio.Future[Any], load: Callable[[Any], Any]) -> asyncio.Future[Any]:
        """Applies `load` to the future's result, and returns the future. No message is lost in between."""
        for waiter in self.receivers:
            if waiter.future is future:
                waiter.attempt = _composed(waiter.attempt, load)
                return future
        # The future was done at once.
        made = self._enter().create_future()
        if future.cancelled():
            made.cancel()
        elif (error := future.exception()) is not None:
            made.set_exception(error)
        else:
            Waiter(made, lambda: load(future.result())).try_once()
        return made

    def close(self) -> None:
        """Cancels all waiters. A closed loop has no task that waits for them, and takes no calls."""
        self._disarm()
        for queue in (self.receivers, self.senders, self.pollers):
            while queue:
                future = queue.popleft().future
                if not future.get_loop().is_closed():
                    future.cancel()

    def _enter(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._disarm()
            self._loop = loop
        return loop

    # -- checks --------------------------------------------------------------------------------

    def _serve_waiters(self) -> None:
        _serve(self.receivers)
        _serve(self.senders)
        self.pollers = deque(waiter for waiter in self.pollers if not waiter.try_once())
        self._arm()

    def _on_timer(self) -> None:
        self._timer = None
        self._serve_waiters()

    def _arm(self) -> None:
        """Registers with the loop for exactly the events that the waiters need."""
        loop = self._loop
        assert loop is not None
        # That of a socket that only sends tells of room, after a send that found none.
        senders = self.senders if self._only_sends else ()
        reads = any(not w.future.done() for w in (*self.receivers, *self.pollers, *senders))
        if reads and self._fd < 0:
            self._fd = self._sync.fileno()
            loop.add_reader(self._fd, self._serve_waiters)
        elif not reads:
            self._stop_reading()
        # That of others does not, nor of a REQ whose peer is lost.
        silent = bool((self.senders and not senders) or self.pollers)
        if (silent or (self.receivers and not self._sync._fd_signals(POLLIN))) and self._timer is None:
            self._timer = loop.call_later(self._pause, self._on_timer)
            self._pause = min(_LATER, self._pause * 2)

    def _stop_reading(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(fd)

    def _disarm(self) -> None:
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _composed(attempt: Attempt, load: Callable[[Any], Any]) -> Attempt:
    return lambda: load(attempt())


def _serve(queue: deque[Waiter]) -> None:
    while queue and queue[0].try_once():
        queue.popleft()


def _end(future: asyncio.Future[Any], at_end: Callable[[Any], None]) -> None:
    if not future.done():
        at_end(future)
