"""The control socket of a connection: passes descriptors, and reports which memory is free again.

    <B kind, 3 unused, I number, Q size or share, Q slot size>, one message each (SOCK_SEQPACKET)

and behind it, of a block on a GPU, what names that memory in other processes.

Finalizers send here too, and they run inside any statement of any thread: sending neither waits nor takes a
lock that another thread could hold.
"""

from __future__ import annotations

import functools
import operator
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from transfer.transports.descriptors import descriptor_hint
from transfer.transports.errors import OutOfDescriptors, ProtocolError
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.shm import fd_passing
from transfer.transports.shm.fd_passing import Passed

_LAYOUT = struct.Struct("<BxxxIQQ")

#: a segment of slots, with its descriptor; and the report that it was given up
SEGMENT, DROP = 1, 2
#: a block of tensors, with its descriptor; reports that a payload in it is free, that it was given up
BLOCK, RELEASED, FORGET = 3, 4, 5
#: a GPU that the sender of this takes payloads on, by its UUID in two numbers; a block on one, with handles;
#: reports that a payload is free, that a block is given up, that the other side does not map it any more
GPU_WANTED, GPU_BLOCK, GPU_RELEASED, GPU_FORGET, GPU_UNMAPPED = 6, 7, 8, 9, 10
#: asks for pieces of a block on a GPU: from which number on, and how many at most; the answer, with the
#: number of the first, the bytes of each, and their descriptors; none: its owner cannot export them
GPU_ASK, GPU_PIECES = 11, 12
#: of a block on a GPU: for many payloads; for one, of the sender's own; to be tried; as LENT, in pieces
KEPT, LENT, TRY, PIECES = 0, 1, 2, 3
#: of one message
MOST_DESCRIPTORS = 32
#: bytes of a UUID, of a handle of memory or an event, of all that a block has, of a piece's length
UUID, HANDLE, LENGTH = 16, 64, 8
GPU_HANDLES = UUID + HANDLE + HANDLE
_MOST = _LAYOUT.size + MOST_DESCRIPTORS * LENGTH + 1

_call: Callable[[Callable[[], object]], object] = operator.call

#: seconds until the next attempt on a full socket
AGAIN = 0.005


class ShmControlMessage(NamedTuple):
    """One message of the peer. descriptors: closed after the receiver has handled it, who copies them if
    needed. handles: what follows the fixed part. lost: this process had no room for all descriptors, and it
    has none."""

    kind: int
    number: int
    size: int
    slot: int
    descriptors: list[int]
    handles: bytes = b""
    lost: bool = False

    @property
    def fd(self) -> int:
        """Of a kind that has one."""
        return self.descriptors[0]


class SpareDescriptor:
    """A descriptor in reserve, closed when a message brings one and there is no room. Thread-safe."""

    def __init__(self) -> None:
        self._held: list[int] = []  # its `pop` is one step for all threads
        self._closed = False
        self.refill()

    def give(self) -> bool:
        """Makes room for one, unless another thread takes it first. False: the reserve is used up."""
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
    """Closes with its last reference, so that no thread reads a number that the system has reused."""

    def __del__(self) -> None:
        self.close()


class ControlChannel:
    """This side's end. Thread-safe; `read` by one thread at a time.

    stuck: called when the peer reads too slowly, in any statement of any thread: it has to arrange that
    `go_on` is called a little later. spare: makes room for incoming descriptors.
    """

    def __init__(self, connection: socket.socket, stuck: Callable[[], None], spare: SpareDescriptor) -> None:
        self._socket: _Owned | None = _Owned(fileno=connection.detach())
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()
        self._stuck = stuck
        self._spare = spare
        self._waiting: deque[bytes] = deque()
        self._sending = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Some messages are not sent yet."""
        return bool(self._waiting)

    def send(self, kind: int, number: int, size: int = 0, slot: int = 0) -> None:
        """Never waits: a message without room is sent later, in order."""
        self._waiting.append(_LAYOUT.pack(kind, number, size, slot))
        self.go_on()

    def go_on(self) -> None:
        """Sends the waiting messages. If another thread does so at this moment, it checks again
        afterwards."""
        waiting = self._waiting
        while waiting:
            # `map`: a signal handler runs after a call; the lock would stay taken, and messages be sent
            # twice.
            [mine] = map(self._sending.acquire, (False,))
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
                waiting.clear()  # the peer is gone
            finally:
                self._sending.release()

    def announce(
        self,
        kind: int,
        number: int,
        size: int,
        slot: int,
        handles: bytes = b"",
        descriptors: Sequence[int] = (),
    ) -> bool:
        """Passes handles and descriptors. False: the peer has not read earlier messages, or is gone."""
        connection = self._socket
        if connection is None:
            return False
        data = _LAYOUT.pack(kind, number, size, slot) + handles
        try:
            fd_passing.send(connection, data, descriptors)
        except OSError:
            return False
        return True

    def read(self) -> Iterator[ShmControlMessage | None]:
        """Yields all messages; None at the end, if the peer is gone. Raises ProtocolError,
        OutOfDescriptors."""
        while (received := self._receive()) is not None:
            data, descriptors, lost = received
            try:
                if not data:
                    yield None
                    return
                yield _decoded(data, descriptors, lost)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
                self._spare.refill()

    def _receive(self) -> Passed | None:
        # A separate function: an error that `read` raises must not keep the socket alive.
        connection = self._socket
        if connection is None:
            return None
        try:
            # The kernel drops a descriptor that has no room here, so this checks for room first.
            seen = self._peek(connection)
            if seen.lost and self._spare.give():
                seen.close()
                seen = self._peek(connection)
            connection.recv(_MOST)
            return seen
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return Passed(b"", [], False)

    def wait(self, seconds: float, *, room: bool = False) -> bool:
        """Waits until there is something to read; room: or until something can be sent. Whether there is
        something to read."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN | (select.POLLOUT if room else 0))
        return any(events & ~select.POLLOUT for _, events in poll.poll(seconds * 1000))

    def _peek(self, connection: socket.socket) -> Passed:
        return fd_passing.receive(connection, _MOST, MOST_DESCRIPTORS + 1, peek=True)

    def close(self) -> None:
        """Idempotent; from any thread, at any time."""
        self._socket = None
        self._waiting.clear()


def out_of_descriptors() -> OutOfDescriptors:
    return OutOfDescriptors("shared memory of a peer has no descriptor here", hint=descriptor_hint())


def _decoded(data: bytes, descriptors: list[int], lost: bool) -> ShmControlMessage:
    if len(data) < _LAYOUT.size:
        raise ProtocolError("control_channel", f"{len(data)} bytes where an announcement was due")
    kind, number, size, slot = _LAYOUT.unpack_from(data)
    handles = data[_LAYOUT.size :]
    if lost and kind != GPU_PIECES:
        raise out_of_descriptors()
    if lost:  # which can be asked for again
        return ShmControlMessage(kind, number, size, slot, [], lost=True)
    if not (SEGMENT <= kind <= GPU_PIECES and _fits(kind, len(handles), len(descriptors))):
        raise ProtocolError(
            "control_channel", f"announcement {kind} of {len(data)} bytes with {len(descriptors)} descriptors"
        )
    return ShmControlMessage(kind, number, size, slot, descriptors, handles)


def _fits(kind: int, nbytes: int, descriptors: int) -> bool:
    if kind == GPU_PIECES:
        return descriptors <= MOST_DESCRIPTORS and nbytes == descriptors * LENGTH
    return descriptors == (kind in (SEGMENT, BLOCK)) and nbytes == (GPU_HANDLES if kind == GPU_BLOCK else 0)


class Bell:
    """Calls back in the reactor's thread. It may be rung in any statement of any thread, also where that
    holds the reactor's lock."""

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
    """An eventfd that closes with its last reference."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return  # another thread did already

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # `os` may be gone at the end of the interpreter
