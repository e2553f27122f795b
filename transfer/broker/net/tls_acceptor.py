"""The TLS handshake of connections that were accepted, on the broker's loop, before a front sees them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.broker.core.refusal_reasons import word_of
from transfer.broker.net.listener import Accepted
from transfer.broker.net.pending_connections import PendingConnections
from transfer.broker.net.tls_socket import TlsSocket
from transfer.throttled_log import ThrottledLog
from transfer.transports.connect.accept import has_spoken
from transfer.transports.errors import TransferError

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel

_log = logging.getLogger("transfer.broker")

#: said of a peer that closed before its first byte
_GONE = "the peer closed in the TLS handshake"

#: makes TLS for a descriptor. Raises SecurityError
Secure = Callable[[int], "TlsChannel"]


@dataclass(slots=True, eq=False)
class _Pending:
    connection: socket.socket
    peer: str
    channel: TlsChannel | None = None  # from its first byte on
    writes: bool = False


class TlsAcceptor:
    """Hands connections to `taker` once TLS is agreed on. On the broker's loop.

    patience: seconds that the handshake may take. most: handshakes at once (see `PendingConnections`).
    refused: how many did not come in, by word.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        secure: Secure,
        taker: Accepted,
        refused: Counter[str],
        *,
        patience: float,
        most: int,
    ) -> None:
        self.refused = refused
        self._loop = loop
        self._throttled = ThrottledLog(_log)
        self._secure = secure
        self._taker = taker
        self._guests: PendingConnections[_Pending] = PendingConnections(
            loop, self._put_out, patience=patience, most=most
        )

    @property
    def unfinished(self) -> int:
        """Handshakes that go on now."""
        return len(self._guests)

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """A new connection, in non-blocking mode."""
        spoken = has_spoken(connection, tls=True)
        guest = _Pending(connection, peer)
        if spoken is False:  # in a storm most have gone, and nothing is made for them
            self._fail(guest, _GONE)
            return
        self._loop.add_reader(connection.fileno(), self._go_on, guest)
        self._guests.add(guest)
        if spoken and guest in self._guests:
            self._go_on(guest)

    def close(self) -> None:
        """Ends all that are unfinished. Idempotent."""
        for guest in self._guests:
            self._let_go(guest)
            guest.connection.close()

    def _go_on(self, guest: _Pending) -> None:
        channel = guest.channel or self._begin(guest)
        if channel is None:
            return
        try:
            done = channel.handshake()
        except OSError as error:
            self._fail(guest, error.strerror or str(error))
            return
        if not done:
            self._watch(guest, writes=channel.unsent > 0)
            return
        self._let_go(guest)
        channel.ahead()
        secured = TlsSocket(guest.connection, channel)
        try:
            self._taker(secured, guest.peer)
        except TransferError as error:
            self._refuse(guest.peer, error)
            secured.close()
        except Exception:  # noqa: BLE001 - the others are served all the same
            _log.exception("a connection of %s cannot be served", guest.peer)
            secured.close()

    def _begin(self, guest: _Pending) -> TlsChannel | None:
        """TLS is made at the first byte: a silent connection costs its descriptor. None: there is none yet,
        or it has ended."""
        spoken = has_spoken(guest.connection, tls=True)
        if spoken is False:
            self._fail(guest, _GONE)
        elif spoken:
            try:
                guest.channel = self._secure(guest.connection.fileno())
            except TransferError as error:
                self._refuse(guest.peer, error)
                self._let_go(guest)
                guest.connection.close()
        return guest.channel

    def _watch(self, guest: _Pending, *, writes: bool) -> None:
        if writes == guest.writes:
            return
        guest.writes = writes
        if writes:
            self._loop.add_writer(guest.connection.fileno(), self._go_on, guest)
        else:
            self._loop.remove_writer(guest.connection.fileno())

    def _refuse(self, peer: str, error: TransferError) -> None:
        self._throttled.say(logging.WARNING, "refused", "%s could not be let in: %s", peer, error)

    def _fail(self, guest: _Pending, said: str) -> None:
        word = word_of(said)
        self._throttled.say(logging.INFO, word, "%s was not let in: %s", guest.peer, said)
        self._put_out(guest, word)

    def _put_out(self, guest: _Pending, word: str) -> None:
        self.refused[word] += 1
        self._let_go(guest)
        guest.connection.close()

    def _let_go(self, guest: _Pending) -> None:
        self._guests.remove(guest)
        self._loop.remove_reader(guest.connection.fileno())
        self._watch(guest, writes=False)
