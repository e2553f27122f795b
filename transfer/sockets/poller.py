"""Poller: waits for several sockets and plain descriptors at once, as pyzmq's does."""

from __future__ import annotations

import select
import time
from typing import Any

from transfer.constants import POLLERR, POLLIN, POLLOUT
from transfer.transports.arguments import events_of, milliseconds, number, shown, wrong
from transfer.transports.errors import NotRegistered

#: seconds between two looks where no descriptor tells (room to send, a REQ whose peer died)
_LOOK = 0.005
#: seconds between two looks where all descriptors tell: one that another thread closes is gone without
#: waking those who poll it
_CLOSED_LOOK = 0.2
_TO_KERNEL = {POLLIN: select.POLLIN, POLLOUT: select.POLLOUT, POLLERR: select.POLLERR}


def wait(entries: list[tuple[Any, int]], timeout: float | None) -> list[tuple[Any, int]]:
    """The entries (socket, descriptor or object with fileno; bits) that are ready.

    Returns at once if any is, and if there is none to wait for without end. timeout: milliseconds, None or
    negative: endless.
    """
    timeout = milliseconds(timeout)
    deadline = None if timeout is None or timeout < 0 else time.monotonic() + timeout / 1000.0
    if not entries and deadline is None:
        return []
    sockets = [(thing, bits) for thing, bits in entries if hasattr(thing, "_ready_bits")]
    others = [(thing, bits) for thing, bits in entries if not hasattr(thing, "_ready_bits")]
    plain = {descriptor(thing): (thing, bits) for thing, bits in others}
    told = {thing: thing.fileno() for thing, _ in sockets}  # before the first look: it tells from now on
    due = 0.0
    while True:
        ready = [(thing, found) for thing, bits in sockets if (found := thing._ready_bits(bits))]
        telling = {told[thing] for thing, bits in sockets if thing._tells(bits)}
        left, look = _left(deadline), _LOOK if len(telling) < len(told) else _CLOSED_LOOK
        seconds = 0.0 if ready else look if left is None else min(look, left)
        poll = select.poll()
        for fd in telling:
            poll.register(fd, select.POLLIN)
        for fd, (_, bits) in plain.items():
            poll.register(fd, sum(kernel for bit, kernel in _TO_KERNEL.items() if bits & bit))
        ready += _plain_ready(poll, plain, seconds)
        if ready or _left(deadline) == 0.0:
            # One last look: a message may have come in the moment in which the time was over.
            return ready or [(thing, found) for thing, bits in sockets if (found := thing._ready_bits(bits))]
        if not due:
            due = time.monotonic() + min((thing._long_wait for thing in told), default=0) / 1000.0
        elif time.monotonic() >= due:
            for thing in told:
                thing._on_long_wait()


def _plain_ready(poll: Any, plain: dict[int, tuple[Any, int]], seconds: float) -> list[tuple[Any, int]]:
    found = []
    for fd, events in poll.poll(seconds * 1000.0):
        if fd not in plain:  # a socket's: the caller looks itself
            continue
        thing, wanted = plain[fd]
        bits = sum(bit for bit, kernel in _TO_KERNEL.items() if events & kernel and (wanted | POLLERR) & bit)
        if events & select.POLLHUP:
            bits |= (wanted & POLLIN) or POLLERR
        if events & select.POLLNVAL:  # it is closed: as pyzmq reports it, else this would never sleep
            bits |= POLLERR
        if bits:
            found.append((thing, bits))
    return found


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def descriptor(thing: Any) -> int:
    """The number of a descriptor, or of what has one. Raises ArgumentError."""
    found = number(thing.fileno() if hasattr(thing, "fileno") else thing)
    if found is not None and 0 <= found < 1 << 31:
        return found
    raise wrong("what is polled", thing, "a socket, a file, or the number of a descriptor")


class Poller:
    """Registered things and the events wanted of each. Not thread-safe, like pyzmq's."""

    def __init__(self) -> None:
        self.sockets: list[tuple[Any, int]] = []
        self._index: dict[Any, int] = {}

    def __contains__(self, socket: Any) -> bool:
        return socket in self._index

    def register(self, socket: Any, flags: int = POLLIN | POLLOUT) -> None:
        """Adds a socket or descriptor, or changes its flags; flags 0 take it out. Raises ArgumentError."""
        flags = events_of(flags)
        if not hasattr(socket, "_ready_bits"):
            descriptor(socket)
        if not flags:
            if socket in self._index:
                self.unregister(socket)
            return
        if socket in self._index:
            self.sockets[self._index[socket]] = (socket, flags)
        else:
            self._index[socket] = len(self.sockets)
            self.sockets.append((socket, flags))

    def modify(self, socket: Any, flags: int = POLLIN | POLLOUT) -> None:
        """The same as `register`."""
        self.register(socket, flags)

    def unregister(self, socket: Any) -> None:
        """Takes it out. Raises NotRegistered, which is a KeyError."""
        try:
            index = self._index.pop(socket)
        except (KeyError, TypeError):  # TypeError: it has no hash
            hint = "register() adds a socket, a file, or the number of a descriptor"
            raise NotRegistered(f"{shown(socket)} is not registered", hint=hint) from None
        del self.sockets[index]
        for other, place in self._index.items():
            if place > index:
                self._index[other] = place - 1

    def poll(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """(socket or descriptor, bits) of what is ready. `timeout` in milliseconds, None endless; with
        nothing registered it returns at once then."""
        return wait(self.sockets, timeout)
