"""What a closed socket still owes is sent by an heir, so that `close` returns at once.

libzmq closes in the background: the linger passes there, and `Context.term` waits for it. Here the
connections of the closed socket move to a plain socket of ours. One thread of the context closes all
of them, each when its peers have everything or its linger is over; it sleeps until something happens.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
import weakref
from typing import Any

from transfer.sockets import drain as draining
from transfer.sockets.monitor import EventKind
from transfer.transports.connect.connector import SocketConnector

logger = logging.getLogger("transfer")

#: seconds between two looks at what no descriptor tells of: a foreign stream's room, a kernel's queue
_LOOK = 0.02
#: seconds that the last step may take, in which the peer's kernel takes what ours has
_FINISH = 5.0
#: ms for the last credit and the end of the connection, when the peer's kernel has all messages
_CLOSE = 100.0
#: seconds between two attempts to connect, at most: no call waits for a closed socket, and it tries for all
#: that are alike; and of the others, should its fate not be theirs
_PAUSE, _RARELY = 1.0, 600.0
_TELLING = (EventKind.CONNECTED, EventKind.DISCONNECTED)


def owes(sock: Any) -> bool:
    """Whether something of this socket may not have reached a peer yet."""
    return bool(sock.messages_sent) or _waiting(sock._links)


def _waiting(links: Any) -> bool:
    with links._lock:
        return bool(links.orphans) or any(draining.unsent(peer.stream) for peer in links.peers.values())


def bequeath(sock: Any, make: Any) -> None:
    """Closes `sock` and lets an heir of the class `make` send what is left."""
    context = sock.context
    heir = make(context, sock._pattern.socket_type)
    heir._values.update(sock._values)
    links, streams = sock._links, sock._streams()
    for stream in streams:
        sock._detach(stream)
    sock._links, heir._links = heir._links, links
    sock._pattern, heir._pattern = heir._pattern, sock._pattern
    sock._requester, heir._requester = heir._requester, sock._requester
    links._socket = weakref.ref(heir)
    make.close(sock, 0)  # nothing of its own is left
    for stream in streams:
        heir._attach(stream, links.sends, links.receives)
    heir._ways_changed()
    context._heirs.take(heir)


class Linger:
    """The heirs of one context, and their thread, which is there while there are any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[Debt] = set()
        self._touched: set[Debt] = set()
        self._thread: threading.Thread | None = None
        self._settled = threading.Condition(self._lock)
        self._wake = -1

    def take(self, heir: Any) -> None:
        debt = Debt(heir, self)
        heir._links.monitors.append(debt)
        with self._lock:
            known = {end for other in self._all for end in other.ends}
            if debt.ends and known.issuperset(debt.ends):
                debt.leave_it_to_others()
            else:
                debt.try_again()
            self._all.add(debt)
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="zmq-linger", daemon=True)
                self._thread.start()
        self.touch(debt)

    def touch(self, debt: Debt) -> None:
        """Something happened to this one: it is looked at."""
        with self._lock:
            if debt in self._all:
                self._touched.add(debt)
                os.eventfd_write(self._wake, 1)

    def settle(self, linger: float | None) -> None:
        """Waits until all are closed; `linger` (ms) shortens or lengthens what they may take."""
        with self._lock:
            left, thread = list(self._all), self._thread
        for debt in left:
            if linger is not None:
                debt.heir._values["linger"] = int(linger)  # it may be closed just now
            self.touch(debt)
        if thread is None:
            return
        # Not by `join`: CPython 3.11 takes a thread for ended when Ctrl-C ends the wait for it.
        with self._lock:
            while self._thread is thread:
                self._settled.wait(_RARELY)
        thread.join(_FINISH)

    def _run(self) -> None:
        while (debts := self._next()) is not None:
            for debt in debts:
                try:
                    settled = debt.look()
                except Exception:  # one socket's end must not keep the others
                    logger.exception("a closed socket cannot send what it has left")
                    debt.heir.close(0)
                    settled = True
                if settled:
                    with self._lock:
                        self._all.discard(debt)
                        self._touched.discard(debt)
                if debt.tries and (settled or debt.reached):
                    self._pass_on(debt)

    def _pass_on(self, debt: Debt) -> None:
        """It tried for those that are alike: now all of them do, or another one if it gave up."""
        debt.tries = False
        with self._lock:
            others = [o for o in self._all if not o.tries and not debt.ends.isdisjoint(o.ends)]
        for other in others if debt.reached else others[:1]:
            other.try_again()

    def _next(self) -> list[Debt] | None:
        """Those with something to do, after waiting for one. None: none is left, and the thread ends."""
        with self._lock:
            if not self._all:
                os.close(self._wake)
                self._thread = None
                self._settled.notify_all()
                return None
            known = list(self._all)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        by_fd = {fd: debt for debt in known for fd in debt.fds}
        for fd in by_fd:
            poll.register(fd, select.POLLOUT)
        due = min(debt.due for debt in known)
        # What has no deadline still ends with an event. The day bounds the number that `poll` takes.
        ready = poll.poll(min(86_400.0, max(0.0, due - time.monotonic())) * 1000.0 + 1.0)
        now = time.monotonic()
        with self._lock:
            found, self._touched = self._touched, set()
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
        found.update(by_fd[fd] for fd, _ in ready if fd in by_fd)
        found.update(debt for debt in known if debt.due <= now)
        return list(found)


class Debt:
    """One heir: until when it may send, and what tells that it can go on.

    ends: where it connects to, and as what: those that have the same are alike. tries: it connects in short
    pauses, and those that are alike wait for it. reached: it had a peer. fds: descriptors that were full.
    due: its next look, in time.monotonic().
    """

    def __init__(self, heir: Any, heirs: Linger) -> None:
        self.heir = heir
        self.fds: list[int] = []
        self.due = 0.0
        self.tries, self.reached = True, False
        connectors = [record.connector for record in heir._links.endpoints]
        self._connectors = [one for one in connectors if isinstance(one, SocketConnector)]
        kind = heir._pattern.socket_type
        self.ends = {(str(connector.address), kind) for connector in self._connectors}
        self._heirs = heirs
        self._started = time.monotonic()
        self._finishing = 0.0
        self._left = -1

    def leave_it_to_others(self) -> None:
        """A thousand of them that try ten times a second are a core's work, and each warns of its wait."""
        self.tries = False
        self.heir._links.warned.waits = True
        for connector in self._connectors:
            connector.rarely(_RARELY)

    def try_again(self) -> None:
        self.tries = True
        for connector in self._connectors:
            connector.hurry(_PAUSE)

    def _put(self, event: Any) -> None:
        """As a monitor of the heir: a peer that came or went changes what can be sent."""
        if event.kind in _TELLING:
            self.reached = True
            self._heirs.touch(self)

    def look(self) -> bool:
        """Goes on as far as it gets. True: it is closed."""
        linger, now = self.heir.linger, time.monotonic()  # Context.destroy(linger) may shorten it
        end = math.inf if linger < 0 else self._started + linger / 1000.0
        links = self.heir._links
        with links._lock:
            peers = [peer for peer in links.peers.values() if not peer.pending]
        draining.flush([peer.stream for peer in peers], 0.0)
        if now < end and _waiting(links):
            self._finishing = 0.0
            self._wait_for(peers, end, now)
            return False
        if not self._finishing:
            self._finishing = now + _FINISH
        end = min(end, self._finishing)
        if now < end and any(draining.unacknowledged(peer.fd) for peer in peers):
            self.fds, self.due = [], min(end, now + _LOOK)
            return False
        self.heir.close(min(_CLOSE, max(0.0, end - now) * 1000.0))
        return True

    def _wait_for(self, peers: list[Any], end: float, now: float) -> None:
        full = [peer for peer in peers if draining.unsent(peer.stream)]
        left = sum(peer.stream.queued_bytes for peer in full)
        # A descriptor that has room although nothing can be written (the connection is lost) is asked later.
        told = left != self._left and all(peer.fd >= 0 and not peer.foreign for peer in full)
        self._left = left if told else -1
        self.fds = [peer.fd for peer in full] if told else []
        idle = not peers or (told and full)
        self.due = end if idle else min(end, now + _LOOK)
