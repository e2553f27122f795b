"""A listening socket that several endpoints of one context share. Each connection goes to the endpoint whose
socket type can talk to the type of the peer."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from transfer.transports.address import Address
from transfer.transports.base import Listener, Transport
from transfer.transports.connect.accept import has_spoken, share_of
from transfer.transports.connect.connection import check_sharing
from transfer.transports.connect.pending import PENDING
from transfer.transports.descriptors import descriptor_hint, is_reserved
from transfer.transports.errors import HandshakeError, OutOfDescriptors, TransferError
from transfer.transports.handshake.compatibility import compatible
from transfer.transports.handshake.exchange import Exchange, late
from transfer.transports.handshake.peer_type import (
    CLIENT_HELLO_BYTES,
    HEADER_BYTES,
    Detection,
    detect_in_client_hello,
    detect_in_header,
)
from transfer.transports.reactor import EDGE, ERROR, HANGUP, PEER_CLOSED, READABLE, Reactor, Timer

if TYPE_CHECKING:
    from transfer.transports.connect.acceptor import SocketAcceptor

#: seconds without accepting when there is no descriptor left; the kernel's backlog keeps new connections
_ACCEPT_PAUSE = 0.1
#: where the system has no edge-triggered readiness: seconds between two looks at an incomplete header
_POLL_INTERVAL = 0.05
#: wake-ups without a new byte after which the kernel's buffer counts as full
_MOST_IDLE_WAKEUPS = 2


class PendingConnection:
    """An accepted connection whose handshake has not begun. It costs a descriptor and a timer.

    refusal: the error that the peer gets instead of a handshake. The thread that removes it from
    `SharedListener.unfinished` owns it.
    """

    __slots__ = (
        "_edge_triggered", "_idle_wakeups", "_reactor", "_seen", "connection", "peer", "refusal", "since",
        "timer",
    )  # fmt: skip

    def __init__(self, reactor: Reactor, connection: socket.socket, peer: str) -> None:
        self._reactor = reactor
        self._edge_triggered = False
        self._seen = self._idle_wakeups = 0
        self.connection = connection
        self.peer = peer
        self.since = monotonic()
        self.refusal: HandshakeError | None = None
        self.timer: Timer | None = None

    def detect(self, *, tls: bool) -> Detection:
        """Looks at the first bytes without consuming them. tls: the peer has to begin with a ClientHello."""
        try:
            first = self.connection.recv(CLIENT_HELLO_BYTES if tls else HEADER_BYTES, socket.MSG_PEEK)
        except OSError:
            return Detection()
        self._idle_wakeups = self._idle_wakeups + 1 if len(first) == self._seen else 0
        self._seen = len(first)
        return detect_in_client_hello(first) if tls else detect_in_header(first)

    @property
    def buffer_is_full(self) -> bool:
        """The kernel reports bytes again and again, but no new ones: the buffer has no room for more."""
        return self._idle_wakeups > _MOST_IDLE_WAKEUPS

    def wake_at(self, nbytes: int) -> None:
        """Sleeps until the kernel has `nbytes` bytes or the peer closes. A peer that sends single bytes then
        costs no more wake-ups than others."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(nbytes, self._seen + 1))
        if not EDGE:
            self._reactor.modify(self.connection.fileno(), 0)
            self._reactor.call_later(_POLL_INTERVAL, self._poll)
        elif not self._edge_triggered:  # only once, as `modify` reports again what is readable already
            self._edge_triggered = True
            self._reactor.modify(self.connection.fileno(), READABLE | PEER_CLOSED | EDGE)

    def _poll(self) -> None:
        self._reactor.modify(self.connection.fileno(), READABLE | PEER_CLOSED)

    def release(self) -> None:
        """Stops watching the connection: the handshake owns it from now on."""
        self._reactor.unregister(self.connection.fileno())
        if self.timer is not None:
            self.timer.cancel()
        if self._seen:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def cancel(self) -> None:
        self.release()
        self.connection.close()


class SharedListener:
    """Everything but `add` and `remove_acceptor` runs in the reactor's thread.

    transport: that of the first endpoint. user: effective user id at the time of the bind, as peers on a Unix
    socket see it. acceptors: the endpoints, the oldest first. unfinished: connections whose handshake has not
    ended, the oldest first, each with its endpoint if that is known.
    """

    def __init__(
        self,
        reactor: Reactor,
        transport: Transport,
        listener: Listener,
        first: SocketAcceptor,
        on_close: Callable[[SharedListener], object],
    ) -> None:
        first.owner.check_listening(listener.address)
        self._reactor = reactor
        self._listener = listener
        self._on_close = on_close
        self._tls = first.owner.requires_tls
        self._most_unfinished = first.owner.most_unfinished
        self._share = share_of(reactor)
        self._lock = threading.Lock()
        self.transport = transport
        self.address = listener.address
        self.user = os.geteuid()
        self.acceptors = [first]
        self.unfinished: dict[Exchange | PendingConnection, SocketAcceptor | None] = {}
        first.attach(self)
        reactor.register(listener.fileno(), READABLE, self._on_listener_readable)

    def add(self, acceptor: SocketAcceptor) -> bool:
        """Adds an endpoint. False: the listener has been closed meanwhile. Raises AddressInUse if both this
        endpoint and another one could talk to the same peer."""
        with self._lock:
            for other in self.acceptors:
                check_sharing(self.address, other.owner, acceptor.owner)
            if self.closed:
                return False
            acceptor.attach(self)
            self.acceptors = [*self.acceptors, acceptor]
            return True

    def remove_acceptor(self, acceptor: SocketAcceptor) -> None:
        """Cancels the handshakes of an endpoint. The last endpoint closes the listener. Idempotent."""
        if self._reactor.forked:  # another thread may have held the lock; the listener itself handles fork
            self._listener.close()
            return
        with self._lock:
            if acceptor not in self.acceptors:
                return
            self.acceptors = [other for other in self.acceptors if other is not acceptor]
            if self.closed:
                self._reactor.unregister(self._listener.fileno())
                self._listener.close()
                self._on_close(self)
            cancelled = [one for one, owner in self.unfinished.items() if self.closed or owner is acceptor]
            for one in cancelled:
                del self.unfinished[one]
        for one in cancelled:
            PENDING.remove(one)
            one.cancel()

    @property
    def closed(self) -> bool:
        """No endpoint is left."""
        return not self.acceptors

    def remove(self, unfinished: Exchange | PendingConnection) -> bool:
        """The caller owns it then. False: another thread has removed it."""
        with self._lock:
            if unfinished not in self.unfinished:
                return False
            del self.unfinished[unfinished]
        PENDING.remove(unfinished)
        return True

    # -- accepting -------------------------------------------------------------------------------

    def _on_listener_readable(self, _events: int) -> None:
        self._share.begin()
        try:
            while self._accept() and not self._share.is_over():
                continue
        except TransferError as error:
            self._pause_accepting()
            self._report(None, error, str(self.address))
            if isinstance(error, OutOfDescriptors):
                PENDING.make_room()

    def _accept(self) -> bool:
        """Accepts one connection. False: there is none. Raises OutOfDescriptors, InternalError."""
        with self._lock:
            if self.closed:
                return False
            accepted = self._listener.accept()
            if accepted is None:
                return False
        if is_reserved(accepted[0].fileno()) and not PENDING.make_room():
            accepted[0].close()
            raise OutOfDescriptors(
                "the last descriptors are kept for files, and a connection is closed", hint=descriptor_hint()
            )
        self._take(*accepted)
        return True

    def _take(self, connection: socket.socket, peer: str) -> None:
        spoken = has_spoken(connection, tls=self._tls)
        if spoken is False:  # in a connection storm most peers have closed already
            connection.close()
            self._report(None, _closed_early(), peer)
            return
        only = self.acceptors[0] if len(self.acceptors) == 1 else None
        at_once = spoken or (only is not None and only.owner.speaks_first)
        self._start(PendingConnection(self._reactor, connection, peer), only if at_once else None)
        PENDING.trim(self._most_unfinished)

    def _pause_accepting(self) -> None:
        # The listener stays readable: without the pause the loop would do nothing else.
        with self._lock:
            if not self.closed:
                self._reactor.modify(self._listener.fileno(), 0)
                self._reactor.call_later(_ACCEPT_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        with self._lock:
            if not self.closed:
                self._reactor.modify(self._listener.fileno(), READABLE)

    # -- from a connection to a handshake ------------------------------------------------------------

    def _start(self, pending: PendingConnection, acceptor: SocketAcceptor | None) -> None:
        """Begins the handshake with this endpoint; None: waits for the peer's first bytes."""
        with self._lock:
            if (acceptor or self).closed:
                pending.cancel()
                return
            try:
                unfinished = self._wait_for_bytes(pending) if acceptor is None else acceptor.begin(pending)
            except TransferError as error:
                pending.cancel()
                refused: TransferError | None = error
            except BaseException:
                pending.cancel()
                raise
            else:
                refused = None
                self.unfinished[unfinished] = acceptor
                PENDING.add(unfinished, partial(self._evict, unfinished))
                too_many = len(self.unfinished) > self._most_unfinished
                oldest = next(iter(self.unfinished)) if too_many else None
        if refused is not None:
            self._report(acceptor, refused, pending.peer)
        elif oldest is not None:
            self._evict(oldest)

    def _wait_for_bytes(self, pending: PendingConnection) -> PendingConnection:
        timeout = max(acceptor.timeout for acceptor in self.acceptors)
        pending.timer = self._reactor.call_later(timeout, self._on_timeout, pending, timeout)
        events = READABLE | PEER_CLOSED
        self._reactor.register(pending.connection.fileno(), events, partial(self._on_readable, pending))
        return pending

    def _on_readable(self, pending: PendingConnection, events: int) -> None:
        spoken = has_spoken(pending.connection, tls=self._tls)
        if spoken is None:
            return
        if spoken:
            acceptor = self._select(pending, ended=bool(events & (PEER_CLOSED | HANGUP | ERROR)))
            if acceptor is not None and self.remove(pending):
                pending.release()
                self._start(pending, acceptor)
        elif self.remove(pending):
            pending.cancel()
            self._report(None, _closed_early(), pending.peer)

    def _select(self, pending: PendingConnection, *, ended: bool) -> SocketAcceptor | None:
        """The endpoint for this peer; None: more bytes are needed. Bytes that name no type, and types that no
        endpoint talks to, go to the first endpoint, which refuses them. ended: the peer sends no more."""
        acceptors = self.acceptors
        if len(acceptors) < 2:
            return next(iter(acceptors), None)
        socket_type, needed = pending.detect(tls=self._tls)
        if needed and not ended and not pending.buffer_is_full:
            pending.wake_at(needed)
            return None
        if socket_type is not None:
            for acceptor in acceptors:
                if compatible(acceptor.socket_type, socket_type):
                    return acceptor
            types = " and ".join(acceptor.socket_type.name for acceptor in acceptors)
            pending.refusal = HandshakeError("socket_type", f"{types} cannot talk to {socket_type.name}")
        return acceptors[0]

    def _on_timeout(self, pending: PendingConnection, timeout: float) -> None:
        if self.remove(pending):
            pending.cancel()
            self._report(None, late(pending.peer, timeout), pending.peer)

    def _evict(self, unfinished: Exchange | PendingConnection) -> None:
        """Closes it to make room for a newer connection: silent peers cannot keep others out. Any thread."""
        acceptor = self.unfinished.get(unfinished)
        if not self.remove(unfinished):
            return
        unfinished.cancel()
        error = HandshakeError("crowded", "the oldest unfinished handshake makes room for the newest")
        with suppress(TransferError):  # the reactor is closed
            self._reactor.call_soon(self._report, acceptor, error, unfinished.peer)

    def _report(self, acceptor: SocketAcceptor | None, error: TransferError, peer: str) -> None:
        """Reports a failed connection to its endpoint, or to the first one where none is known."""
        for receiver in (acceptor,) if acceptor is not None else self.acceptors[:1]:
            receiver.owner.on_failed(error, peer)


class _Listeners:
    """The shared listeners of one context, by `Transport.listen_key`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[Hashable, SharedListener] = {}

    def forget(self, key: Hashable, listener: SharedListener) -> None:
        """Removes a closed listener. Does not take the lock: its holder may wait for a name look-up."""
        found = self.open.pop(key, None)
        if found is not None and found is not listener:
            self.open.setdefault(key, found)


_listeners: WeakKeyDictionary[Reactor, _Listeners] = WeakKeyDictionary()


def listen(
    reactor: Reactor, transport: Transport, address: Address, backlog: int, acceptor: SocketAcceptor
) -> None:
    """Attaches an endpoint to a new listener, or to the one that another socket of its context has there.
    Raises as `connection.serve`."""
    listeners = _listeners.setdefault(reactor, _Listeners())  # atomic: there is no lock for a fork to copy
    key = transport.listen_key(address) if acceptor.owner.shares_endpoint else None
    with listeners.lock:
        found = None if key is None else listeners.open.get(key)
        if found is not None and found.add(acceptor):
            return
        listener = transport.listen(address, backlog=backlog)
        # The bound address has the real port. The listener itself is the key of one that is not shared.
        bound = transport.listen_key(listener.address) if acceptor.owner.shares_endpoint else None
        key = bound or listener
        try:
            shared = SharedListener(reactor, transport, listener, acceptor, partial(listeners.forget, key))
        except BaseException:
            listener.close()
            raise
        listeners.open[key] = shared


def _closed_early() -> HandshakeError:
    return HandshakeError("closed", "the peer closed before its hello was complete")
