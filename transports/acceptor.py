"""A bound endpoint in the reactor's thread: it shakes hands with those who come in for it."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace

from transports.address import Address
from transports.base import Transport
from transports.connection import AcceptorOwner, Connected, hand_over
from transports.errors import HandshakeError
from transports.exchange import Exchange
from transports.hello import Agreement
from transports.listening import Listening, Silent, listen
from transports.reactor import Reactor
from transports.upgrade import Made


class SocketAcceptor:
    """See `connection.Acceptor`; made by `connection.serve`. timeout: seconds of a handshake. closed: nobody
    more is let in."""

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
        self.socket_type = owner.socket_type
        self.timeout = handshake_timeout
        self.closed = False
        self._reactor = reactor
        self._transport = transport
        self.address = address
        listen(reactor, transport, address, backlog, self)

    def placed(self, listening: Listening) -> None:
        """Before the first peer comes in there."""
        self._listening = listening
        where = listening.address
        self.address = replace(self.address, host=where.host, port=where.port, path=where.path)

    def close(self) -> None:
        self.closed = True
        self._listening.leave(self)

    def adopt(self, connection: socket.socket, peer: str) -> None:
        """See `connection.Acceptor`."""
        self._reactor.call_soon(self._listening.adopt, connection, peer, self)

    def begin(self, silent: Silent) -> Exchange:
        """The handshake with a peer that has spoken. Raises TransferError."""
        if self._transport is not self._listening.transport:
            with suppress(OSError):  # it was reset: the handshake finds out
                self._transport.tune(silent.connection)
        exchange = self.owner.exchange(
            self._reactor, silent.connection, self.address, silent.peer, self._ended,
            base=self._transport.scheme, user=self._listening.user, refusal=silent.refusal,
        )  # fmt: skip
        exchange.start(self.timeout, silent.since)
        return exchange

    def _ended(self, exchange: Exchange, outcome: Agreement | HandshakeError, made: Made | None) -> None:
        self._listening.remove(exchange)
        # A connection that was agreed on while `close` ran is handed out: the peer counts on it.
        if isinstance(outcome, Agreement):
            assert made is not None
            connected = Connected.of(made, outcome, self.address, exchange.peer)
            hand_over(connected, self.owner.on_connected)
        elif not self.closed:
            self.owner.on_failed(outcome, exchange.peer)
