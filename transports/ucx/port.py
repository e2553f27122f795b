"""A socket's UCX worker, which the streams to all its peers share, and what wakes whom.

UCX makes progress only inside calls. Whoever sends or receives makes it; beside them the context's
reactor does, as long as a stream has something under way that its application does not wait for.

The worker's descriptor tells of the next event only if the worker was armed after the last one was
taken. So whoever took events arms it before he leaves, and tells the receivers for whom something came.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from transfer.transports.errors import Broken, ForkedError
from transfer.transports.reactor import READABLE, Reactor
from transfer.transports.ucx.driver import Fabric, Worker, forked

#: pieces of progress between two looks at what came of them, and how many looks one call takes
STEPS, ROUNDS = 64, 16
#: how many retired tags are looked after: what their peers sent late is thrown away
_RETIRED = 64
#: the bits of a tag that say whose it is; the others say what kind of message
OWNER = ~3 & ((1 << 64) - 1)


#: requests that were not over when their socket was closed, with their memory
_buried: list[tuple[Any, Any]] = []


class Member(Protocol):
    """A stream as its port sees it. Both methods are called with the port's lock."""

    on_readable: Callable[[], None] | None

    def look(self) -> None:
        """After progress that others made. Never raises."""

    def has_arrived(self) -> bool:
        """Whether its receiver would find something."""

    def interrupted(self) -> None:
        """A signal's handler raised in a call of one of the port's streams. With the port's lock."""


class Port:
    """Owns a worker. `with port, port.lock:` holds its lock; every call that is not said to take it needs it.
    The lock is left by itself: a signal's handler may raise in a method of ours, and never in the lock's.

    reactor: makes progress for streams that want it; None: only callers do. watched: somebody has
    `wait_fds` watched all the time, as for sockets that only send, and calls `receive` then.

    What must be called without the lock (callbacks of streams) goes into `calls`, and is called on
    leaving.
    """

    def __init__(self, fabric: Fabric, reactor: Reactor | None = None, *, watched: bool = False) -> None:
        self.worker: Worker = fabric.worker()
        self.wait_fds = (self.worker.fd,)
        self.calls: list[Callable[[], object]] = []
        self.streams: list[Member] = []
        self._fabric = fabric
        self.has_cuda = bool(fabric.has_cuda)
        self._process = fabric.process
        self.lock = threading.Lock()
        self._reactor = reactor
        self._watched_by_others = watched
        self._eager: set[Member] = set()  # those that want progress whoever makes it
        self._watched = -1  # a descriptor of our own for the reactor: the worker's may be watched by others
        self._retired: list[int] = []
        self._owner_mask = self.worker.mask(OWNER)
        #: requests of closed streams that are not over yet, with the memory that they use
        self._graves: list[tuple[Any, Any]] = []
        self._closing = False
        self.closed = False
        #: `advance` is wanted before the lock goes
        self.due = False

    def __enter__(self) -> Port:
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
        """A signal's handler raised, maybe between progress and arming: nothing would tell of what comes."""
        if self._reactor is not None:
            self._reactor.call_soon(self._serve)

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._process

    # -- streams -------------------------------------------------------------------------------------

    def join(self, stream: Member) -> None:
        """A stream begins. Raises Broken if the socket was closed meanwhile."""
        if self.closed or self._closing:
            raise Broken("the socket was closed")
        self.streams.append(stream)
        self._sweep()

    def leave(self, stream: Member, owner: int, left: list[tuple[Any, Any]]) -> None:
        """A stream ended: its tag, and its requests that are not over, with the memory they use."""
        self.streams.remove(stream)
        self.want(stream, False)
        self._graves += left
        self._retired = [*self._retired[1 - _RETIRED :], owner]
        self._sweep()
        if self._closing and not self.streams:
            self._end()

    def _sweep(self) -> None:
        """Throws away what came for streams that are gone, and lets go of memory that is free."""
        worker = self.worker
        for owner in self._retired:
            while (found := worker.find(worker.tag(owner), mask=self._owner_mask, remove=True)) is not None:
                worker.discard(found)
        self._graves = [grave for grave in self._graves if not grave[0].completed]

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
        self._graves = [grave for grave in self._graves if not grave[0].completed]
        _buried.extend(self._graves)  # UCX may still touch their memory, so it is never freed

    # -- progress -------------------------------------------------------------------------------------

    def want(self, stream: Member, progress: bool) -> None:
        """Whether the stream wants progress also while nobody waits for it."""
        if progress:
            if stream in self._eager:
                return
            self._eager.add(stream)
            if self._reactor is None or self._watched >= 0:
                return
            if not self._watched_by_others:
                self._watched = os.dup(self.worker.fd)
                self._reactor.register(self._watched, READABLE, self._serve)
            self.due = True  # whoever watches from now on must not have missed anything
        elif stream in self._eager:
            self._eager.discard(stream)
            if not self._eager:
                self._unwatch()

    def stepped_for(self, stream: Member) -> None:
        """The stream made progress for itself; what came of it may concern others that want some."""
        if len(self._eager) > (stream in self._eager):
            self.due = True

    def _unwatch(self) -> None:
        if self._watched >= 0:
            assert self._reactor is not None
            self._reactor.unregister(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _serve(self, _events: int = 0) -> None:
        """In the reactor: something happened. Takes the lock."""
        try:
            with self, self.lock:
                if not self.closed:
                    self.advance()
        except ForkedError:
            return

    def advance(self) -> None:
        """Makes progress for all, until there is none: then the descriptor tells of the next.

        Requests are booked, what may go goes, and receivers for whom something came are told.
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
            if self._reactor is not None:  # others have their turn in between
                self._reactor.call_soon(self._serve)
        self.due = False  # looking may have asked for it again
        for stream in self.streams:
            if stream.on_readable is not None and stream.has_arrived():
                self.calls.append(stream.on_readable)
