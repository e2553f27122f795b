"""Poller: waits for several sockets and plain descriptors at once, as pyzmq's does."""

from __future__ import annotations

import select
import time
from typing import Any

from transfer.constants import POLLERR, POLLIN, POLLOUT
from transfer.transports import core
from transfer.transports.arguments import events_of, milliseconds, number, shown, wrong
from transfer.transports.errors import NotRegistered

#: seconds between two checks where no descriptor signals readiness (room to send, a REQ with a dead peer)
_LOOK = 0.005
#: seconds between two checks where every descriptor does: closing one in another thread does not wake
#: the threads that poll it
_CLOSED_LOOK = 0.2
_TO_KERNEL = {POLLIN: select.POLLIN, POLLOUT: select.POLLOUT, POLLERR: select.POLLERR}


def wait(entries: list[tuple[Any, int]], timeout: float | None) -> list[tuple[Any, int]]:
    """Returns the entries (socket, descriptor or object with fileno; bits) that are ready.

    Blocks until one is ready. It returns at once without entries and without a timeout. timeout:
    milliseconds, None or negative waits without limit.
    """
    timeout = milliseconds(timeout)
    polled = core.poll_sockets(entries, timeout)
    if polled is not None:
        return polled
    deadline = None if timeout is None or timeout < 0 else time.monotonic() + timeout / 1000.0
    if not entries and deadline is None:
        return []
    sockets = [(thing, bits) for thing, bits in entries if hasattr(thing, "_ready_bits")]
    others = [(thing, bits) for thing, bits in entries if not hasattr(thing, "_ready_bits")]
    plain = {descriptor(thing): (thing, bits) for thing, bits in others}
    fds = {thing: thing.fileno() for thing, _ in sockets}  # before the first check: it signals from now on
    due = 0.0
    while True:
        ready = [(thing, found) for thing, bits in sockets if (found := thing._ready_bits(bits))]
        signalling = {fds[thing] for thing, bits in sockets if thing._fd_signals(bits)}
        left, look = _left(deadline), _LOOK if len(signalling) < len(fds) else _CLOSED_LOOK
        seconds = 0.0 if ready else look if left is None else min(look, left)
        poll = select.poll()
        for fd in signalling:
            poll.register(fd, select.POLLIN)
        for fd, (_, bits) in plain.items():
            poll.register(fd, sum(kernel for bit, kernel in _TO_KERNEL.items() if bits & bit))
        ready += _plain_ready(poll, plain, seconds)
        if ready or _left(deadline) == 0.0:
            # Check once more: a message may have arrived in the moment of the timeout.
            return ready or [(thing, found) for thing, bits in sockets if (found := thing._ready_bits(bits))]
        if not due:
            due = time.monotonic() + min((thing._long_wait for thing in fds), default=0) / 1000.0
        elif time.monotonic() >= due:
            for thing in fds:
                thing._on_long_wait()


def _plain_ready(poll: Any, plain: dict[int, tuple[Any, int]], seconds: float) -> list[tuple[Any, int]]:
    found = []
    for fd, events in poll.poll(seconds * 1000.0):
        if fd not in plain:  # a socket's: the caller checks it
            continue
        thing, wanted = plain[fd]
        bits = sum(bit for bit, kernel in _TO_KERNEL.items() if events & kernel and (wanted | POLLERR) & bit)
        if events & select.POLLHUP:
            bits |= (wanted & POLLIN) or POLLERR
        if events & select.POLLNVAL:  # it is closed: reported as by pyzmq, else this loop would spin
            bits |= POLLERR
        if bits:
            found.append((thing, bits))
    return found


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def descriptor(thing: Any) -> int:
    """Returns the number of a descriptor, or of an object that has one. Raises ArgumentError."""
    found = number(thing.fileno() if hasattr(thing, "fileno") else thing)
    if found is not None and 0 <= found < 1 << 31:
        return found
    raise wrong("what is polled", thing, "a socket, a file, or the number of a descriptor")


class Poller:
    """Waits for several sockets and descriptors. Not thread-safe, like pyzmq's."""

    def __init__(self) -> None:
        self.sockets: list[tuple[Any, int]] = []
        self._index: dict[Any, int] = {}

    def __contains__(self, socket: Any) -> bool:
        return socket in self._index

    def register(self, socket: Any, flags: int = POLLIN | POLLOUT) -> None:
        """Adds a socket or descriptor, or changes its flags.

        Args:
            socket: a Socket, a file, or the number of a descriptor.
            flags: POLLIN, POLLOUT, POLLERR combined; 0 removes it.

        Raises:
            ArgumentError: the object cannot be polled.
        """
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
        """Changes the flags, as `register` does."""
        self.register(socket, flags)

    def unregister(self, socket: Any) -> None:
        """Removes a socket or descriptor. Raises NotRegistered, which is a KeyError."""
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
        """Blocks until a registered socket or descriptor is ready.

        Args:
            timeout: milliseconds; None waits without limit.

        Returns:
            A list of (socket or descriptor, bits), empty after the timeout. With nothing registered and no
            timeout it is empty at once.
        """
        return wait(self.sockets, timeout)
