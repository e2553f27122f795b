"""Accepts connections of a listener in the reactor's thread and shakes hands with them."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from functools import partial
from time import monotonic

from transports.address import Address
from transports.base import Transport
from transports.connection import AcceptorOwner, Connected, hand_over
from transports.descriptors import descriptor_hint, is_reserved
from transports.errors import HandshakeError, OutOfDescriptors, TransferError
from transports.exchange import Exchange
from transports.hello import Agreement
from transports.pending import MOST, PENDING
from transports.reactor import READABLE, Reactor
from transports.security.guard import check_listening
from transports.upgrade import Made

#: connections taken at one wake-up, and seconds for them, so that a storm leaves room for timers and others
_BATCH, _SLICE = 64, 0.001
#: seconds until the next ones are taken in a storm: what else there is has its turn
_BREATH = 0.005
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
        #: the oldest first
        self._exchanges: dict[Exchange, None] = {}
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
            unfinished = list(self._exchanges)
            self._exchanges.clear()
        for exchange in unfinished:
            PENDING.remove(exchange)
            exchange.cancel()

    # ------------------------------------------------------------------------------------------

    def _ready(self, _events: int) -> None:
        until = monotonic() + _SLICE
        for _ in range(_BATCH):
            try:
                if not self._accept():
                    return
                if monotonic() >= until:
                    self._rest(_BREATH)
                    return
            except TransferError as error:
                self._rest(_REST)
                self._owner.on_failed(error, str(self.address))
                if isinstance(error, OutOfDescriptors):
                    PENDING.make_room()
                return

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
        with self._lock:
            if self._closed:
                connection.close()
                return
            try:
                self._begin(connection, peer)
            except TransferError as error:
                refused: TransferError | None = error
            else:
                refused = None
                crowd_out = next(iter(self._exchanges)) if len(self._exchanges) > self._most else None
        if refused is not None:
            self._owner.on_failed(refused, peer)
            return
        if crowd_out is not None:
            self._evict(crowd_out)
        PENDING.trim(self._most)

    def _begin(self, connection: socket.socket, peer: str) -> None:
        try:
            exchange = self._owner.exchange(
                self._reactor, connection, self.address, peer, self._ended,
                base=self._base, user=self._user,
            )  # fmt: skip
            exchange.start(self._timeout)
        except BaseException:
            connection.close()
            raise
        self._exchanges[exchange] = None
        PENDING.add(exchange, partial(self._evict, exchange))

    def _evict(self, exchange: Exchange) -> None:
        """It makes room for others, so that peers that say nothing keep no other out. Any thread."""
        with self._lock:
            if exchange not in self._exchanges:
                return
            del self._exchanges[exchange]
        PENDING.remove(exchange)
        exchange.cancel()
        error = HandshakeError("crowded", "the oldest unfinished handshake makes room for the newest")
        with suppress(TransferError):  # the reactor ends
            self._reactor.call_soon(self._owner.on_failed, error, exchange.peer)

    def _ended(self, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None) -> None:
        with self._lock:
            self._exchanges.pop(exchange, None)
        PENDING.remove(exchange)
        # A connection that was agreed on while `close` ran is handed out: the peer counts on it.
        if isinstance(outcome, Agreement):
            assert made is not None
            connected = Connected.of(made, outcome, self.address, exchange.peer)
            hand_over(connected, self._owner.on_connected)
        elif not self._closed:
            self._owner.on_failed(outcome, exchange.peer)

    def _rest(self, seconds: float) -> None:
        # The listener stays readable, so without the pause the loop would do nothing else.
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), 0)
                self._reactor.call_later(seconds, self._resume)

    def _resume(self) -> None:
        with self._lock:
            if not self._closed:
                self._reactor.modify(self._listener.fileno(), READABLE)
