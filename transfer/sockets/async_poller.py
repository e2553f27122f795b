"""Polling for coroutines: waits until sockets, descriptors or objects with a descriptor are ready."""

# Types forbid a coroutine that overrides a plain method; `Poller` does so on purpose.
# mypy: disable-error-code="override"

from __future__ import annotations

import asyncio
from typing import Any

from transfer.constants import POLLERR, POLLIN, POLLOUT
from transfer.sockets.connections.no_peer import LongWait
from transfer.sockets.poller import Poller as _Poller, wait as look
from transfer.sockets.readiness import wake
from transfer.transports.arguments import milliseconds

#: seconds: first and longest pause between two tries where no descriptor signals room
SOON, LATER = 0.0005, 0.02


async def wait(entries: list[tuple[Any, int]], timeout: float | None) -> list[tuple[Any, int]]:
    """Returns the entries (socket, descriptor or object with fileno; bits) that are ready, as
    `transfer.sockets.poller.wait`. timeout: milliseconds, None or negative waits without limit."""
    loop, timeout = asyncio.get_running_loop(), milliseconds(timeout)
    deadline = None if timeout is None or timeout < 0 else loop.time() + timeout / 1000
    ready = look(entries, 0)
    if ready or timeout == 0:
        return ready
    if not entries and deadline is None:
        await asyncio.sleep(0)  # a loop of such polls lets other tasks run
        return ready
    waiting = [LongWait(loop, thing) for thing, _ in entries if _is_socket(thing)]
    try:
        return await _first_ready(entries, deadline)
    finally:
        for one in waiting:
            one.close()


async def _first_ready(entries: list[tuple[Any, int]], deadline: float | None) -> list[tuple[Any, int]]:
    loop = asyncio.get_running_loop()
    pause = SOON
    while True:
        ready = look(entries, 0)
        left = None if deadline is None else deadline - loop.time()
        if ready or (left is not None and left <= 0):
            return ready
        if not all(not hasattr(one, "_fd_signals") or one._fd_signals(bits) for one, bits in entries):
            left = pause if left is None else min(pause, left)
            pause = min(2 * pause, LATER)
        await _any_input(entries, left)


async def _any_input(entries: list[tuple[Any, int]], seconds: float | None) -> None:
    """Waits until one of the entries may be ready, or the time is over."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    fds = []
    tasks = []
    for thing, bits in entries:
        if _is_socket(thing):
            if bits & POLLIN and thing._fd_signals(POLLIN):
                tasks.append(loop.create_task(thing._input().wait()))
                tasks[-1].add_done_callback(lambda _: wake(woken))
            continue
        fd = thing if isinstance(thing, int) else thing.fileno()
        if bits & (POLLIN | POLLERR):
            loop.add_reader(fd, wake, woken)
        if bits & POLLOUT:
            loop.add_writer(fd, wake, woken)
        fds.append(fd)
    try:
        async with asyncio.timeout(seconds):
            await woken
    except TimeoutError:
        return
    finally:
        for fd in fds:
            loop.remove_reader(fd)
            loop.remove_writer(fd)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_socket(thing: Any) -> bool:
    """Whether it is a socket of `transfer.asyncio`."""
    return hasattr(thing, "_input")


class Poller(_Poller):
    """`transfer.Poller` with a coroutine `poll`."""

    async def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """Waits until a registered socket is ready, as `transfer.Poller.poll`; `timeout` in milliseconds."""
        return await wait(self.sockets, timeout)
