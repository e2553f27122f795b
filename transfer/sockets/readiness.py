"""Tasks of an event loop that wait until a socket may have something to receive."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from transfer.transports.errors import Closed


class Readiness:
    """The tasks that await input on one socket. The loop's reader stays on while messages keep arriving."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.loop = loop
        self.fd = fd
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._watched = False
        self._idle = 0
        self._ended = False

    async def wait(self) -> None:
        """Returns when another try may succeed; several waiters wake one after the other. Raises Closed."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        self._idle = 0
        try:
            if not self._watched:
                with suppress(OSError):  # another thread has closed it, which is seen below
                    self.loop.add_reader(self.fd, self._ready)
                    self._watched = True
            if self._ended or not self._watched:  # asked last: the thread that closes sets it first
                self.close()
                raise Closed("the socket is closed")
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._ready()  # the wake-up goes to the next waiter
            raise
        finally:
            with suppress(ValueError):  # it was woken
                self._waiters.remove(waiter)

    def _ready(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        # The task that was woken reads in this pass of the loop. Only when no task waits the second time,
        # the loop stops watching.
        self._idle += 1
        if self._idle > 1:
            self.close()

    def end(self) -> None:
        """Before the socket closes, in any thread: every waiter tries again, and cannot wait any more."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Stops watching the descriptor; every waiter tries again."""
        if self._watched:
            self._watched = False
            if not self.loop.is_closed():
                self.loop.remove_reader(self.fd)
        while self._waiters:
            self._wake(self._waiters.popleft())

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if asyncio._get_running_loop() is self.loop:
            wake(waiter)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(wake, waiter)


def watch(loop: asyncio.AbstractEventLoop, fd: int, ready: asyncio.Future[None]) -> bool:
    """Ends `ready` when a descriptor has room. Returns False if its connection is lost."""
    try:
        loop.add_writer(fd, wake, ready)
    except OSError:
        return False
    return True


def wake(future: asyncio.Future[None]) -> None:
    """Ends a future, unless it has ended."""
    if not future.done():
        future.set_result(None)
