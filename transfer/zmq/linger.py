"""Sends the queued messages of a closed socket in the background, so that `close` returns at once.

libzmq closes in the background: the linger passes there, and `Context.term` waits for it. Here the
connections of the closed socket move to a successor, a plain socket. One thread of the context closes all
successors, each when its peers have all messages or its linger is over; it sleeps until an event.
"""

from __future__ import annotations

import logging
import math
import os
import select
import sys
import threading
import time
import weakref
from typing import Any

from transfer.sockets import drain
from transfer.sockets.monitor import EventKind
from transfer.transports.connect.connector import SocketConnector

logger = logging.getLogger("transfer")

#: seconds between two checks where no descriptor signals: a foreign stream's room, a kernel's queue
_CHECK_INTERVAL = 0.02
#: seconds without progress that end the last step, in which the peer's kernel receives the data of ours
_FINISH = 5.0
#: ms for the last credit and the end of the connection, when the peer's kernel has all messages
_CLOSE = 100.0
#: seconds between two attempts to connect, at most: of the socket that tries for its group (no call waits for
#: it), and of the others, in case their connections succeed where its own fail
_PAUSE, _LONG_PAUSE = 1.0, 600.0
_PEER_EVENTS = (EventKind.CONNECTED, EventKind.DISCONNECTED)


def has_unsent(sock: Any) -> bool:
    """Whether messages of this socket may not have reached a peer yet, and a thread can still send them."""
    return not sys.is_finalizing() and (bool(sock.messages_sent) or _waiting(sock._links))


def _waiting(links: Any) -> bool:
    with links.state.lock:
        return bool(links.orphans.messages) or any(
            drain.unsent(peer.stream) for peer in links.state.peers.values()
        )


def hand_over(sock: Any, make: Any) -> None:
    """Closes `sock` and lets a successor of the class `make` send the rest."""
    context = sock.context
    successor = make(context, sock._pattern.socket_type)
    successor._values.update(sock._values, sndhwm_bytes=sock.sndhwm_bytes)
    links, streams = sock._links, sock._streams()
    for stream in streams:
        sock._detach(stream)
    sock._links, successor._links = successor._links, links
    sock._pattern, successor._pattern = successor._pattern, sock._pattern
    sock._requester, successor._requester = successor._requester, sock._requester
    sock._sender, successor._sender = successor._sender, sock._sender
    links.state.socket = weakref.ref(successor)
    make.close(sock, 0)  # it has no connections any more
    for stream in streams:
        successor._attach(stream, links.state.sends, links.state.receives)
    successor._update_fast_paths()
    context._transfer_lingering.take(successor)


class Linger:
    """The successors of one context, and their thread, which runs while there are any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[PendingClose] = set()
        self._touched: set[PendingClose] = set()
        self._thread: threading.Thread | None = None
        self._settled = threading.Condition(self._lock)
        self._wake = -1

    def take(self, successor: Any) -> None:
        item = PendingClose(successor, self)
        successor._links.state.monitors.append(item)
        with self._lock:
            known = {end for other in self._all for end in other.ends}
            if item.ends and known.issuperset(item.ends):
                item.wait_for_group()
            else:
                item.connect_again()
            self._all.add(item)
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="zmq-linger", daemon=True)
                self._thread.start()
        self.touch(item)

    def touch(self, item: PendingClose) -> None:
        """Marks a socket for a check after an event."""
        with self._lock:
            if item in self._all:
                self._touched.add(item)
                os.eventfd_write(self._wake, 1)

    def settle(self, linger: float | None) -> None:
        """Waits until all are closed; `linger` (ms) replaces their remaining time."""
        with self._lock:
            left, thread = list(self._all), self._thread
        for item in left:
            if linger is not None:
                item.successor._values["linger"] = int(linger)  # another thread may be closing it
            self.touch(item)
        if thread is None:
            return
        # Not by `join`: CPython 3.11 regards a thread as ended when Ctrl-C ends the wait for it.
        with self._lock:
            while self._thread is thread:
                self._settled.wait(_LONG_PAUSE)
        thread.join(_FINISH)

    def _run(self) -> None:
        while (items := self._next()) is not None:
            for item in items:
                try:
                    settled = item.check()
                except Exception:  # an error of one socket must not affect the others
                    logger.exception("a closed socket cannot send its queued messages")
                    item.successor.close(0)
                    settled = True
                if settled:
                    with self._lock:
                        self._all.discard(item)
                        self._touched.discard(item)
                if item.tries and (settled or item.reached):
                    self._hand_on(item)

    def _hand_on(self, item: PendingClose) -> None:
        """Lets the rest of the group connect, too, or another member if this one has given up."""
        item.tries = False
        with self._lock:
            others = [o for o in self._all if not o.tries and not item.ends.isdisjoint(o.ends)]
        for other in others if item.reached else others[:1]:
            other.connect_again()

    def _next(self) -> list[PendingClose] | None:
        """Waits for an event; returns the sockets with work. None: none is left, and the thread ends."""
        with self._lock:
            if not self._all:
                os.close(self._wake)
                self._thread = None
                self._settled.notify_all()
                return None
            known = list(self._all)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        by_fd = {fd: item for item in known for fd in item.fds}
        for fd in by_fd:
            poll.register(fd, select.POLLOUT)
        due = min(item.due for item in known)
        # A socket without a deadline still ends by an event. The day bounds the argument of `poll`.
        ready = poll.poll(min(86_400.0, max(0.0, due - time.monotonic())) * 1000.0 + 1.0)
        now = time.monotonic()
        with self._lock:
            found, self._touched = self._touched, set()
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
        found.update(by_fd[fd] for fd, _ in ready if fd in by_fd)
        found.update(item for item in known if item.due <= now)
        return list(found)


class PendingClose:
    """One successor: its deadline, and what signals that it can continue.

    ends: its endpoints and type; sockets with the same ones form a group. tries: it tries to connect often,
    and the others of the group wait for it. reached: it had a peer. fds: descriptors that were full. due: the
    time of its next check, in time.monotonic().
    """

    def __init__(self, successor: Any, lingering: Linger) -> None:
        self.successor = successor
        self.fds: list[int] = []
        self.due = 0.0
        self.tries, self.reached = True, False
        connectors = [record.connector for record in successor._links.state.endpoints]
        self._connectors = [one for one in connectors if isinstance(one, SocketConnector)]
        kind = successor._pattern.socket_type
        self.ends = {(str(connector.address), kind) for connector in self._connectors}
        self._lingering = lingering
        self._started = time.monotonic()
        self._finishing = 0.0
        self._unacknowledged = 0
        self._left = -1

    def wait_for_group(self) -> None:
        """Tries seldom and logs no warning: a thousand sockets that try often would keep a core busy."""
        self.tries = False
        self.successor._links.no_peer.warned.waits = True
        for connector in self._connectors:
            connector.slow_down(_LONG_PAUSE)

    def connect_again(self) -> None:
        self.tries = True
        for connector in self._connectors:
            connector.retry_now(_PAUSE)

    def _put(self, event: Any) -> None:
        """Handles an event, as a monitor of the successor: a new or lost peer changes what can be sent."""
        if event.kind in _PEER_EVENTS:
            self.reached = True
            self._lingering.touch(self)

    def check(self) -> bool:
        """Continues as far as possible. Returns True when the socket is closed."""
        linger, now = self.successor.linger, time.monotonic()  # Context.destroy(linger) may shorten it
        end = math.inf if linger < 0 else self._started + linger / 1000.0
        links = self.successor._links
        with links.state.lock:
            peers = [peer for peer in links.state.peers.values() if not peer.pending]
        drain.flush([peer.stream for peer in peers], 0.0)
        if now < end and _waiting(links):
            self._finishing = 0.0
            self._wait_for(peers, end, now)
            return False
        unacknowledged = sum(drain.unacknowledged(peer.fd) for peer in peers)
        if not self._finishing or unacknowledged < self._unacknowledged:
            self._finishing = now + _FINISH
        self._unacknowledged = unacknowledged
        end = min(end, self._finishing)
        if now < end and unacknowledged:
            self.fds, self.due = [], min(end, now + _CHECK_INTERVAL)
            return False
        self.successor.close(min(_CLOSE, max(0.0, end - now) * 1000.0))
        return True

    def _wait_for(self, peers: list[Any], end: float, now: float) -> None:
        full = [peer for peer in peers if drain.unsent(peer.stream)]
        left = sum(peer.stream.queued_bytes for peer in full)
        # A descriptor may have room although nothing can be written (the connection is lost): check it later.
        signalled = left != self._left and all(peer.fd >= 0 and not peer.foreign for peer in full)
        self._left = left if signalled else -1
        self.fds = [peer.fd for peer in full] if signalled else []
        idle = not peers or (signalled and full)
        self.due = end if idle else min(end, now + _CHECK_INTERVAL)
