"""Accepts connections of a listener in the reactor's thread and shakes hands with them."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from functools import partial
from time import monotonic

from transports.accepting import has_spoken, share_of
from transports.address import Address
from transports.base import Transport
from transports.connection import AcceptorOwner, Connected, hand_over
from transports.descriptors import descriptor_hint, is_reserved
from transports.errors import HandshakeError, OutOfDescriptors, TransferError
from transports.exchange import Exchange, late
from transports.hello import Agreement
from transports.pending import MOST, PENDING
from transports.reactor import PEER_CLOSED, READABLE, Reactor, Timer
from transports.security.guard import check_listening
from transports.upgrade import Made

#: seconds that a listener rests when there is no descriptor left: the backlog keeps who comes
_REST = 0.1


class _Silent:
    """A connection whose peer has said nothing yet: it costs a descriptor and a timer. It belongs to
    the thread that takes it out of the acceptor's `_unfinished`."""

    __slots__ = ("_reactor", "connection", "peer", "since", "timer")

    def __init__(self, reactor: Reactor, connection: socket.socket, peer: str) -> None:
        self._reactor = reactor
        self.connection = connection
        self.peer = peer
        self.since = monotonic()
        self.timer: Timer | None = None

    def let_go(self) -> None:
        """The connection is another's now."""
        self._reactor.unregister(self.connection.fileno())
        if self.timer is not None:
            self.timer.cancel()

    def cancel(self) -> None:
        self.let_go()
        self.connection.close()


class SocketAcceptor:
    """See `connection.Acceptor`; made by `connection.serve`."""

    def __init__(
        self,
        reactor: Reactor,
        transport: Transport,
        address: Address,
        owner: AcceptorOwner,
        *,
        backlog: int,
        handshake_timeout: float,
    ) -> None:
        self._reactor = reactor
        self._base = transport.scheme
        self._owner = owner
        self._timeout = handshake_timeout
        self._lock = threading.Lock()
        self._closed = False
        #: the oldest first
        self._unfinished: dict[Exchange | _Silent, None] = {}
        self._share = share_of(reactor)
        self._listener = transport.listen(address, backlog=backlog)
        self._user = os.geteuid()  # as peers hear it from the kernel, also when this process changes it later
        self.address = self._listener.address
        credentials = owner.credentials
        self._most = MOST if credentials is None else credentials.security.unfinished
        try:
            if credentials is not None and owner.networked:
                check_listening(self.address.host, str(self.address), credentials.security)
                owner.secure("")  # without a certificate nobody could come in
            reactor.register(self._listener.fileno(), READABLE, self._ready)
        except BaseException:
            self._listener.close()
            raise

    def close(self) -> None:
        if self._reactor.forked:  # locks may be held for ever here; the listener itself knows of fork
            self._closed = True
            self._listener.close()
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._reactor.unregister(self._listener.fileno())
            self._listener.close()
            unfinished = list(self._unfinished)
            self._unfinished.clear()
        for exchange in unfinished:
            PENDING.remove(exchange)
            exchange.cancel()

    # ------------------------------------------------------------------------------------------

    def _ready(self, _events: int) -> None:
        self._share.begin()
        try:
            while self._accept() and not self._share.is_over():
                continue
        except TransferError as error:
            self._rest()
            self._owner.on_failed(error, str(self.address))
            if isinstance(error, OutOfDescriptors):
                PENDING.make_room()

    def _accept(self) -> bool:
        """Takes one connection; False if there is none. Raises OutOfDescriptors, InternalError."""
        with self._lock:
            if self._closed:
                return False
            accepted = self._listener.accept()
            if accepted is None:
                return False
        if is_reserved(accepted[0].fileno()) and not PENDING.make_room():
            accepted[0].close()
            raise OutOfDescriptors(
                "the last descriptors are kept for files, and a connection is closed", hint=descriptor_hint()
            )
        self._adopt(*accepted)
        return True

    def adopt(self, connection: socket.socket, peer: str) -> None:
        """See `connection.Acceptor`."""
        self._reactor.call_soon(self._adopt, connection, peer)

    def _adopt(self, connection: socket.socket, peer: str) -> None:
        spoken = has_spoken(connection)
        if spoken is False:  # in a storm most have gone, and nothing is made for them
            connection.close()
            self._owner.on_failed(_gone(), peer)
            return
        self._take(_Silent(self._reactor, connection, peer), spoken=bool(spoken))
        PENDING.trim(self._most)

    def _take(self, silent: _Silent, *, spoken: bool) -> None:
        with self._lock:
            if self._closed:
                silent.cancel()
                return
            try:
                unfinished = self._begin(silent) if spoken else self._await(silent)
            except TransferError as error:
                silent.cancel()
                refused: TransferError | None = error
            except BaseException:
                silent.cancel()
                raise
            else:
                refused = None
                self._unfinished[unfinished] = None
                PENDING.add(unfinished, partial(self._evict, unfinished))
                crowd_out = next(iter(self._unfinished)) if len(self._unfinished) > self._most else None
        if refused is not None:
            self._owner.on_failed(refused, silent.peer)
        elif crowd_out is not None:
            self._evict(crowd_out)

    def _await(self, silent: _Silent) -> _Silent:
        silent.timer = self._reactor.call_later(self._timeout, self._late, silent)
        events = READABLE | PEER_CLOSED
        self._reactor.register(silent.connection.fileno(), events, lambda _events: self._spoke(silent))
        return silent

    def _spoke(self, silent: _Silent) -> None:
        spoken = has_spoken(silent.connection)
        if spoken is not None and self._remove(silent):
            if spoken:
                silent.let_go()
                self._take(silent, spoken=True)
            else:
                silent.cancel()
                self._owner.on_failed(_gone(), silent.peer)

    def _late(self, silent: _Silent) -> None:
        if self._remove(silent):
            silent.cancel()
            self._owner.on_failed(late(silent.peer, self._timeout), silent.peer)

    def _begin(self, silent: _Silent) -> Exchange:
        exchange = self._owner.exchange(
            self._reactor, silent.connection, self.address, silent.peer, self._ended,
            base=self._base, user=self._user,
        )  # fmt: skip
        exchange.start(self._timeout, silent.since)
        return exchange

    def _remove(self, unfinished: Exchange | _Silent) -> bool:
        """It is the caller's; False: another has ended it."""
        with self._lock:
            if unfinished not in self._unfinished:
                return False
            del self._unfinished[unfinished]
        PENDING.remove(unfinished)
        return True

    def _evict(self, exchange: Exchange | _Silent) -> None:
        """It makes room for others, so that peers that say nothing keep no other out. Any thread."""
        if not self._remove(exchange):
            return
        exchange.cancel()
        error = HandshakeError("crowded", "the oldest unfinished handshake makes room for the newest")
        with suppress(TransferError):  # the reactor ends
            self._reactor.call_soon(self._owner.on_failed, error, exchange.peer)

    def _ended(self, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None) -> None:
        self._remove(exchange)
        # A connection that was agreed on while `close` ran is handed out: the peer counts on it.
        if isinstance(outcome, Agreement):
            assert made is not None
            connected = Connected.of(made, outcome, self.address, exchange.peer)
            hand_over(connected, self._owner.on_connected)
        elif not self._closed:
            self._owner.on_failed(outcome, exchange.peer)

    def _rest(self) -> None:
        # The listener stays readable, so without the pause the loop would do nothing else.
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), 0)
                self._reactor.call_later(_REST, self._resume)

    def _resume(self) -> None:
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), READABLE)


def _gone() -> HandshakeError:
    return HandshakeError("closed", "the peer closed before its hello was complete")
