"""A socket's UCX worker, which the streams to all its peers share, and the wake-ups between them.

UCX makes progress only inside calls. Threads that send or receive make it. In addition the context's reactor
does, while a stream has pending work that its application does not wait for.

The worker's descriptor reports the next event only if the worker was armed after the last one was taken. So a
thread that took events arms it before it leaves, and wakes the receivers of what arrived.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from transfer.transports.errors import Broken, ForkedError
from transfer.transports.gpu_receiving import GpuReceiving
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.ucx.driver import Fabric, Worker, forked

#: pieces of progress between two checks of the results, and the most checks of one call
STEPS, ROUNDS = 64, 16
#: how many retired tags are checked: late messages of their peers are dropped
_RETIRED = 64
#: the bits of a tag that identify the owner; the others are the kind of message
OWNER = ~3 & ((1 << 64) - 1)


#: pending requests of a closed socket, with their memory
_unfinished: list[tuple[Any, Any]] = []


class PortMember(Protocol):
    """A stream as its port sees it. Its methods are called with the port's lock."""

    on_readable: Callable[[], None] | None

    def look(self) -> None:
        """After progress by others. Never raises."""

    def has_arrived(self) -> bool:
        """Whether its receiver would find a message."""

    def interrupted(self) -> None:
        """A signal handler raised in a call of one of the port's streams. With the port's lock."""


class UcxPort:
    """Owns a worker. `with port, port.lock:` holds its lock, which every method needs unless it states that
    it takes it. The lock is separate: a signal handler may raise in a method of this class, never in the
    lock's.

    reactor: makes progress for streams that need it; None: only callers do. watched: another thread always
    watches `wait_fds`, as for sockets that only send, and calls `receive` then. gpus: memory on GPUs to
    receive into; its owner closes it.

    Callbacks that must run without the lock are put into `calls`, and called on leaving.
    """

    def __init__(
        self,
        fabric: Fabric,
        reactor: Reactor | None = None,
        *,
        watched: bool = False,
        gpus: GpuReceiving | None = None,
    ) -> None:
        self.worker: Worker = fabric.worker()
        self.wait_fds = (self.worker.fd,)
        self.calls: list[Callable[[], object]] = []
        self.streams: list[PortMember] = []
        self._fabric = fabric
        self.has_cuda = bool(fabric.has_cuda)
        self.gpus = gpus if self.has_cuda else None
        self._process = fabric.process
        self.lock = threading.Lock()
        self._reactor = reactor
        self._watched_by_others = watched
        self._eager: set[PortMember] = set()  # those that need progress in any thread
        self._watched = -1  # a separate descriptor for the reactor: other threads may watch the worker's
        self._retired: list[int] = []
        self._owner_mask = self.worker.mask(OWNER)
        #: pending requests of closed streams, with the memory that they use
        self._pending: list[tuple[Any, Any]] = []
        self._closing = False
        self.closed = False
        #: `advance` is needed before the lock is released
        self.due = False

    def __enter__(self) -> UcxPort:
        if os.getpid() != self._process:
            raise forked()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is not None and not issubclass(kind, Exception):
                self._go_on_later()
                with self.lock:
                    for stream in self.streams[:]:
                        stream.interrupted()
            if self.due:
                with self.lock:
                    if self.due and not self.closed:
                        self.advance()
            if self.calls:
                with self.lock:
                    calls, self.calls = self.calls, []
                for call in calls:
                    call()
        except BaseException as error:
            if not isinstance(error, Exception):
                self._go_on_later()
            raise

    def _go_on_later(self) -> None:
        """A signal handler raised, maybe between progress and arming: no event would be reported then."""
        if self._reactor is not None:
            self._reactor.call_soon(self._serve)

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._process

    # -- streams -------------------------------------------------------------------------------------

    def join(self, stream: PortMember) -> None:
        """A stream starts. Raises Broken if the socket was closed in the meantime."""
        if self.closed or self._closing:
            raise Broken("the socket was closed")
        self.streams.append(stream)
        self._sweep()

    def leave(self, stream: PortMember, owner: int, left: list[tuple[Any, Any]]) -> None:
        """A stream ended: its tag, and its pending requests, with the memory they use."""
        self.streams.remove(stream)
        self.want(stream, False)
        self._pending += left
        self._retired = [*self._retired[1 - _RETIRED :], owner]
        self._sweep()
        if self._closing and not self.streams:
            self._end()

    def _sweep(self) -> None:
        """Drops late messages for streams that are gone, and releases free memory."""
        worker = self.worker
        for owner in self._retired:
            while (found := worker.find(worker.tag(owner), mask=self._owner_mask, remove=True)) is not None:
                worker.discard(found)
        self._pending = [entry for entry in self._pending if not entry[0].completed]

    def close(self) -> None:
        """Ends the worker with its last stream. Takes the lock. Idempotent."""
        if self.is_forked:
            return
        with self, self.lock:
            self._closing = True
            if not self.streams:
                self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._eager.clear()
        self._unwatch()
        self._fabric.give_back(self.worker)
        self._pending = [entry for entry in self._pending if not entry[0].completed]
        _unfinished.extend(self._pending)  # UCX may still touch their memory, so it is never freed

    # -- progress -------------------------------------------------------------------------------------

    def want(self, stream: PortMember, progress: bool) -> None:
        """Sets whether the stream needs progress also while no thread waits for it."""
        if progress:
            if stream in self._eager:
                return
            self._eager.add(stream)
            if self._reactor is None or self._watched >= 0:
                return
            if not self._watched_by_others:
                self._watched = os.dup(self.worker.fd)
                self._reactor.register(self._watched, READABLE, self._serve)
            self.due = True  # the reactor, which watches from now on, must not miss an event
        elif stream in self._eager:
            self._eager.discard(stream)
            if not self._eager:
                self._unwatch()

    def stepped_for(self, stream: PortMember) -> None:
        """The stream made progress for itself; the results may concern others that need progress."""
        if len(self._eager) > (stream in self._eager):
            self.due = True

    def _unwatch(self) -> None:
        if self._watched >= 0:
            assert self._reactor is not None
            self._reactor.unregister(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _serve(self, _events: int = 0) -> None:
        """In the reactor: an event was reported. Takes the lock."""
        try:
            with self, self.lock:
                if not self.closed:
                    self.advance()
        except ForkedError:
            return

    def advance(self) -> None:
        """Makes progress for all, until there is none: then the descriptor reports the next event.

        Accounts completed requests, sends what is allowed, and wakes receivers of arrived messages.
        """
        self.due = False
        worker = self.worker
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                if not worker.step():
                    break
            for stream in self.streams[:]:
                stream.look()
            if worker.arm():
                break
        else:
            if self._reactor is not None:  # other streams have their turn in between
                self._reactor.call_soon(self._serve)
        self.due = False  # the calls above may have set it again
        for stream in self.streams:
            if stream.on_readable is not None and stream.has_arrived():
                self.calls.append(stream.on_readable)
