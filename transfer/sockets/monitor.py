"""The events of a socket's connections, as a stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from transfer.transports.arguments import seconds
from transfer.transports.errors import Again, Closed
from transfer.transports.waiters import Waiters

#: events that a monitor keeps until they are fetched; the oldest are dropped first
_LIMIT = 10_000


class EventKind(StrEnum):
    """What an event reports. `count` and `error` are set where noted."""

    LISTENING = "listening"
    BIND_FAILED = "bind_failed"
    CONNECT_DELAYED = "connect_delayed"
    CONNECT_RETRIED = "connect_retried"
    CONNECTED = "connected"
    ACCEPT_FAILED = "accept_failed"
    HANDSHAKE_FAILED = "handshake_failed"
    #: a connection ended; `error` has the cause
    DISCONNECTED = "disconnected"
    #: a peer sent an invalid frame; `reason` is the constant word
    PROTOCOL_FAILED = "protocol_failed"
    #: a connection ended with `count` messages that the peer never confirmed
    UNCONFIRMED = "unconfirmed"
    #: `count` messages of a lost peer went to other peers, or wait for one
    REDISTRIBUTED = "redistributed"
    #: a peer was silent for too long
    SILENT = "silent"
    #: the peer refused this socket; `reason` says why
    REFUSED = "refused"
    #: `peer` is a member of an endpoint that stands for many: the name service lists it now, or no longer
    MEMBER_ADDED = "member_added"
    MEMBER_RETIRED = "member_retired"
    #: a member that is no longer listed has no connection any more
    MEMBER_REMOVED = "member_removed"
    #: the name service did not answer; known members stay
    LOOK_UP_FAILED = "look_up_failed"
    CALLBACK_FAILED = "callback_failed"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `peer` is the peer's address as text; `reason` a constant word."""

    kind: EventKind
    endpoint: str = ""
    peer: str = ""
    reason: str = ""
    count: int = 0
    error: BaseException | None = None


class Monitor:
    """Receives a socket's events from the call of `get_monitor` on. Thread-safe."""

    def __init__(self, forget: Callable[[Monitor], None]) -> None:
        self._forget = forget
        self._events: deque[Event] = deque(maxlen=_LIMIT)
        self._lock = threading.RLock()
        self._changed = Waiters(self._lock)
        self._closed = False

    def recv(self, timeout: float | None = None) -> Event:
        """Returns the next event.

        Args:
            timeout: seconds; None waits until the socket is closed.

        Raises:
            Again: no event within `timeout`.
            Closed: the socket or the monitor is closed.
        """
        timeout = seconds(timeout)
        if not self._changed.wait_for(lambda: self._events or self._closed, timeout):
            raise Again(f"no event within {timeout} s")
        try:
            return self._events.popleft()
        except IndexError:
            if not self._closed:  # another thread was faster
                return self.recv(timeout)
            raise Closed("the monitor is closed") from None

    def __iter__(self) -> Iterator[Event]:
        """Yields events until the socket or the monitor is closed."""
        while True:
            try:
                yield self.recv()
            except Closed:
                return

    def close(self) -> None:
        """Ends the stream of events. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._forget(self)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _put(self, event: Event) -> None:
        with self._lock:
            if not self._closed:
                self._events.append(event)
                if event.kind is EventKind.CLOSED:
                    self._closed = True
                self._changed.notify_all()
