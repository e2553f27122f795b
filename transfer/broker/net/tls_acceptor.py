"""Performs the TLS handshake of accepted connections, on the broker's loop, before a front gets them."""

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

#: the error of a peer that closed before its first byte
_GONE = "the peer closed in the TLS handshake"

#: makes the TLS channel of a descriptor. Raises SecurityError
Secure = Callable[[int], "TlsChannel"]


@dataclass(slots=True, eq=False)
class _Pending:
    connection: socket.socket
    peer: str
    channel: TlsChannel | None = None  # from its first byte on
    writes: bool = False


class TlsAcceptor:
    """Passes connections to `taker` after their TLS handshake. On the broker's loop.

    patience: seconds that the handshake may take. most: handshakes at once (see `PendingConnections`).
    refused: numbers of refused connections by reason.
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
        self._unfinished: PendingConnections[_Pending] = PendingConnections(
            loop, self._evict, patience=patience, most=most
        )

    @property
    def unfinished(self) -> int:
        """Number of running handshakes."""
        return len(self._unfinished)

    def accepted(self, connection: socket.socket, peer: str) -> None:
        """Takes a new connection, in non-blocking mode."""
        spoken = has_spoken(connection, tls=True)
        pending = _Pending(connection, peer)
        if spoken is False:  # in a storm most peers have closed already: do not set anything up for them
            self._fail(pending, _GONE)
            return
        self._loop.add_reader(connection.fileno(), self._continue, pending)
        self._unfinished.add(pending)
        if spoken and pending in self._unfinished:
            self._continue(pending)

    def close(self) -> None:
        """Closes connections with unfinished handshakes. Idempotent."""
        for pending in self._unfinished:
            self._release(pending)
            pending.connection.close()

    def _continue(self, pending: _Pending) -> None:
        channel = pending.channel or self._begin(pending)
        if channel is None:
            return
        try:
            done = channel.handshake()
        except OSError as error:
            self._fail(pending, error.strerror or str(error))
            return
        if not done:
            self._watch(pending, writes=channel.unsent > 0)
            return
        self._release(pending)
        channel.ahead()
        secured = TlsSocket(pending.connection, channel)
        try:
            self._taker(secured, pending.peer)
        except TransferError as error:
            self._refuse(pending.peer, error)
            secured.close()
        except Exception:  # noqa: BLE001 - the other connections are still served
            _log.exception("a connection of %s cannot be served", pending.peer)
            secured.close()

    def _begin(self, pending: _Pending) -> TlsChannel | None:
        """Sets TLS up at the first byte, so that a silent connection costs only its descriptor.

        Returns None if no byte has arrived, or the connection has ended.
        """
        spoken = has_spoken(pending.connection, tls=True)
        if spoken is False:
            self._fail(pending, _GONE)
        elif spoken:
            try:
                pending.channel = self._secure(pending.connection.fileno())
            except TransferError as error:
                self._refuse(pending.peer, error)
                self._release(pending)
                pending.connection.close()
        return pending.channel

    def _watch(self, pending: _Pending, *, writes: bool) -> None:
        if writes == pending.writes:
            return
        pending.writes = writes
        if writes:
            self._loop.add_writer(pending.connection.fileno(), self._continue, pending)
        else:
            self._loop.remove_writer(pending.connection.fileno())

    def _refuse(self, peer: str, error: TransferError) -> None:
        self._throttled.log(logging.WARNING, "refused", "the connection of %s is refused: %s", peer, error)

    def _fail(self, pending: _Pending, error: str) -> None:
        reason = word_of(error)
        self._throttled.log(logging.INFO, reason, "the TLS handshake of %s failed: %s", pending.peer, error)
        self._evict(pending, reason)

    def _evict(self, pending: _Pending, reason: str) -> None:
        self.refused[reason] += 1
        self._release(pending)
        pending.connection.close()

    def _release(self, pending: _Pending) -> None:
        self._unfinished.remove(pending)
        self._loop.remove_reader(pending.connection.fileno())
        self._watch(pending, writes=False)
