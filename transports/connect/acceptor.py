"""A bound endpoint, with the handshakes of its peers in the reactor's thread."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from transfer.transports.address import Address
from transfer.transports.base import Transport
from transfer.transports.connect.connection import AcceptorOwner, Connected, hand_over
from transfer.transports.connect.shared_listener import PendingConnection, SharedListener, listen
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.exchange import Exchange
from transfer.transports.handshake.hello import Agreement
from transfer.transports.handshake.upgrade import Made
from transfer.transports.reactor import Reactor


class SocketAcceptor:
    """See `connection.Acceptor`; made by `connection.serve`. timeout: seconds for a handshake. closed: it
    accepts no more connections."""

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
        self.owner = owner
        self.timeout = handshake_timeout
        self.closed = False
        self._reactor = reactor
        self._transport = transport
        self.address = address
        listen(reactor, transport, address, backlog, self)

    @cached_property
    def socket_type(self) -> SocketType:
        """For listeners that are shared. The owner makes a hello for it."""
        return self.owner.socket_type

    def attach(self, listener: SharedListener) -> None:
        """Called before the listener passes it the first connection."""
        self._listener = listener
        bound = listener.address
        self.address = replace(self.address, host=bound.host, port=bound.port, path=bound.path)

    def close(self) -> None:
        self.closed = True
        self._listener.remove_acceptor(self)

    def begin(self, pending: PendingConnection) -> Exchange:
        """Starts the handshake with a peer that has sent something. Raises TransferError."""
        if self._transport is not self._listener.transport:
            with suppress(OSError):  # it was reset, which the handshake reports
                self._transport.tune(pending.connection)
        exchange = self.owner.exchange(
            self._reactor, pending.connection, self.address, pending.peer, self._ended,
            base=self._transport.scheme, user=self._listener.user, refusal=pending.refusal,
        )  # fmt: skip
        exchange.start(self.timeout, pending.since)
        return exchange

    def _ended(self, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None) -> None:
        self._listener.remove(exchange)
        # A connection whose handshake succeeded while `close` ran is handed out: the peer relies on it.
        if isinstance(outcome, Agreement):
            assert made is not None
            connected = Connected.of(made, outcome, self.address, exchange.peer)
            hand_over(connected, self.owner.on_connected)
        elif not self.closed:
            self.owner.on_failed(outcome, exchange.peer)
