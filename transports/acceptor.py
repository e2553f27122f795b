"""Accepts connections of a listener in the reactor's thread and shakes hands with them."""

from __future__ import annotations

import socket
import threading

from transports.address import Address
from transports.base import Transport
from transports.connection import AcceptorOwner, Connected, hand_over
from transports.errors import HandshakeError, TransferError
from transports.exchange import Exchange, wished
from transports.handshake import Handshake
from transports.hello import Agreement
from transports.reactor import READABLE, Reactor
from transports.upgrade import Made

#: connections taken at one wake-up, so that a storm of them leaves room for timers and others
_BATCH = 64
#: seconds that a listener rests when there is no descriptor left: the backlog keeps who comes
_REST = 0.1


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
        self._exchanges: set[Exchange] = set()
        self._listener = transport.listen(address, backlog=backlog)
        self.address = self._listener.address
        try:
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
            unfinished = list(self._exchanges)
            self._exchanges.clear()
        for exchange in unfinished:
            exchange.cancel()

    # ------------------------------------------------------------------------------------------

    def _ready(self, _events: int) -> None:
        for _ in range(_BATCH):
            try:
                if not self._accept():
                    return
            except TransferError as error:
                self._rest()
                self._owner.on_failed(error, str(self.address))
                return

    def _accept(self) -> bool:
        """Takes one connection; False if there is none. Raises OutOfDescriptors, InternalError."""
        with self._lock:
            if self._closed:
                return False
            accepted = self._listener.accept()
            if accepted is None:
                return False
            self._begin(*accepted)
            return True

    def adopt(self, connection: socket.socket, peer: str) -> None:
        """See `connection.Acceptor`."""
        self._reactor.call_soon(self._adopt, connection, peer)

    def _adopt(self, connection: socket.socket, peer: str) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            try:
                self._begin(connection, peer)
            except TransferError as error:
                refused = error
            else:
                return
        self._owner.on_failed(refused, peer)

    def _begin(self, connection: socket.socket, peer: str) -> None:
        try:
            hello = wished(self._owner.hello(), self.address, self._base)
            upgrades = self._owner.upgrades
            handshake = Handshake(hello, connecting=False, base=self._base, upgrades=upgrades)
            exchange = Exchange(self._reactor, connection, handshake, peer, self._ended)
            exchange.start(self._timeout)
        except BaseException:
            connection.close()
            raise
        self._exchanges.add(exchange)

    def _ended(self, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None) -> None:
        with self._lock:
            self._exchanges.discard(exchange)
        # A connection that was agreed on while `close` ran is handed out: the peer counts on it.
        if isinstance(outcome, Agreement):
            assert made is not None
            connected = Connected.of(made, outcome, self.address, exchange.peer)
            hand_over(connected, self._owner.on_connected)
        elif not self._closed:
            self._owner.on_failed(outcome, exchange.peer)

    def _rest(self) -> None:
        # The listener stays readable, so without the pause the loop would do nothing but fail.
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), 0)
                self._reactor.call_later(_REST, self._resume)

    def _resume(self) -> None:
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), READABLE)
