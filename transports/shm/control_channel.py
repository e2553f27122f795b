"""The small socket beside a connection: passes descriptors, and tells what is given back.

    <B kind, 3 unused, I number, Q size or share, Q slot size>, one message each (SOCK_SEQPACKET)

What is said here comes out of finalizers, too, which run inside any statement of any thread: nothing
on that way waits or takes a lock that somebody could hold.
"""

from __future__ import annotations

import functools
import operator
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from transfer.transports.descriptors import descriptor_hint
from transfer.transports.errors import OutOfDescriptors, ProtocolError
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.shm import fd_passing as passing
from transfer.transports.shm.fd_passing import Passed

_LAYOUT = struct.Struct("<BxxxIQQ")

#: a segment of slots, with its descriptor; and that it was given up
SEGMENT, DROP = 1, 2
#: a block of tensors, with its descriptor; that a payload in it is given back; that it was given up
BLOCK, RELEASED, FORGET = 3, 4, 5
_WITH_DESCRIPTOR = (SEGMENT, BLOCK)

_call: Callable[[Callable[[], object]], object] = operator.call

#: seconds until a full socket is tried again
AGAIN = 0.005


class Said(NamedTuple):
    """One message of the peer's. fd: for the receiver to copy, closed after it was looked at."""

    kind: int
    number: int
    size: int
    slot: int
    fd: int


class SpareDescriptor:
    """One that is given up when another comes and there is no room for it. Thread-safe."""

    def __init__(self) -> None:
        self._held: list[int] = []  # its `pop` is one step for all threads
        self._closed = False
        self.refill()

    def give(self) -> bool:
        """There is room for one, unless another thread takes it first. False: it was given before."""
        try:
            os.close(self._held.pop())
        except IndexError:
            return False
        return True

    def refill(self) -> None:
        """Idempotent."""
        if not self._held and not self._closed:
            with suppress(OSError):  # there is still none
                self._held.append(os.eventfd(0, os.EFD_CLOEXEC))

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self.give()


class _Owned(socket.socket):
    """Closes when nobody uses it any more, so that no thread reads a number that is another's now."""

    def __del__(self) -> None:
        self.close()


class ControlChannel:
    """Our end. Thread-safe; `read` by one thread at a time.

    stuck: called when the peer reads too slowly for what is said, out of any statement of any
    thread: it has to see that `go_on` is called a little later. spare: makes room for what comes.
    """

    def __init__(self, connection: socket.socket, stuck: Callable[[], None], spare: SpareDescriptor) -> None:
        self._socket: _Owned | None = _Owned(fileno=connection.detach())
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        self._stuck = stuck
        self._spare = spare
        self._waiting: deque[bytes] = deque()
        self._saying = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Something was not said yet."""
        return bool(self._waiting)

    def say(self, kind: int, number: int, size: int = 0) -> None:
        """Never waits: what finds no room is said later, in order."""
        self._waiting.append(_LAYOUT.pack(kind, number, size, 0))
        self.go_on()

    def go_on(self) -> None:
        """Says what waits. Whoever is at it already looks again afterwards."""
        waiting = self._waiting
        while waiting:
            # `map`: a signal's handler runs behind a call, where the lock would stay and words be said twice.
            [mine] = map(self._saying.acquire, (False,))
            if not mine:
                return
            try:
                connection = self._socket
                while waiting and connection is not None:
                    send = functools.partial(connection.send, waiting[0])
                    steps: tuple[Callable[[], object], ...] = (send, waiting.popleft)
                    [_, _] = map(_call, steps)
                if connection is None:
                    waiting.clear()
            except BlockingIOError:
                self._stuck()
                return
            except OSError:
                waiting.clear()  # nobody is left to hear it
            finally:
                self._saying.release()

    def announce(self, kind: int, number: int, size: int, slot: int, fd: int) -> bool:
        """Passes a descriptor. False: the peer has not read what was said before, or is gone."""
        connection = self._socket
        if connection is None:
            return False
        try:
            passing.send(connection, _LAYOUT.pack(kind, number, size, slot), [fd])
        except OSError:
            return False
        return True

    def read(self) -> Iterator[Said | None]:
        """All that has come; None at the end, if the peer is gone. Raises ProtocolError, OutOfDescriptors."""
        while (received := self._receive()) is not None:
            data, descriptors, lost = received
            try:
                if not data:
                    yield None
                    return
                if lost:
                    raise OutOfDescriptors(
                        "shared memory of a peer has no descriptor here", hint=descriptor_hint()
                    )
                yield _understood(data, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
                self._spare.refill()

    def _receive(self) -> Passed | None:
        # A function of its own: an error that `read` raises must not keep the socket alive.
        connection = self._socket
        if connection is None:
            return None
        try:
            # The kernel drops a descriptor that has no room here, so it is looked whether it has.
            seen = passing.receive(connection, _LAYOUT.size + 1, 4, peek=True)
            if seen.lost and self._spare.give():
                seen = passing.receive(connection, _LAYOUT.size + 1, 4, peek=True)
            connection.recv(_LAYOUT.size + 1)
            return seen
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return Passed(b"", [], False)

    def close(self) -> None:
        """Idempotent; from any thread, at any time."""
        self._socket = None
        self._waiting.clear()


def _understood(data: bytes, descriptors: list[int]) -> Said:
    if len(data) != _LAYOUT.size:
        raise ProtocolError("control_channel", f"{len(data)} bytes where an announcement was due")
    kind, number, size, slot = _LAYOUT.unpack(data)
    if not SEGMENT <= kind <= FORGET or len(descriptors) != (kind in _WITH_DESCRIPTOR):
        raise ProtocolError("control_channel", f"announcement {kind} with {len(descriptors)} descriptors")
    return Said(kind, number, size, slot, descriptors[0] if descriptors else -1)


class Bell:
    """Calls back in the reactor's thread; it may be rung out of any statement of any thread, where
    the reactor's own lock may be held already."""

    def __init__(self, reactor: Reactor, answer: Callable[[], None]) -> None:
        self._event: _Event | None = _Event()
        self._reactor = reactor
        self._answer = answer
        reactor.register(self._event.fd, READABLE, self._rung)

    def ring(self) -> None:
        event = self._event
        if event is not None:
            event.set()

    def close(self) -> None:
        """Idempotent."""
        event, self._event = self._event, None
        if event is not None:
            self._reactor.unregister(event.fd)

    def _rung(self, events: int) -> None:
        event = self._event
        if event is not None:
            event.clear()
            self._answer()


class _Event:
    """An eventfd that closes when nobody uses it any more."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # somebody did already

    def __del__(self) -> None:
        os.close(self.fd)
