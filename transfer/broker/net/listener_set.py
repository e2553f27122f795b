"""The TCP listeners of a broker's fronts, and how a connection gets from there to its front: by TLS, if
there is TLS, and only as many as are allowed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.broker.core.refusal_reasons import WORDS
from transfer.broker.net.listener import Accepted, Listener
from transfer.broker.net.pending_connections import PendingConnections
from transfer.broker.net.tls_acceptor import TlsAcceptor
from transfer.broker.net.tls_socket import channel_of
from transfer.broker.net.unix_listener import UnixListener
from transfer.transports.security.guard import check_listening

if TYPE_CHECKING:
    import socket

    import transfer
    from transfer.broker.net.connection import Connection
    from transfer.transports.address import Address
    from transfer.transports.core.contract import TlsChannel, TlsContext

#: takes a connection that was let in; what it has made of it, where the doors look after it until its first
#: frame
OnConnection = Callable[["socket.socket", str], "Connection | None"]


class ListenerSet:
    """On the broker's loop. context: whose credentials are shown. patience: seconds for a handshake.

    refused: by front, how many were not let in, by word.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: transfer.Context, patience: float) -> None:
        self.credentials = context.credentials
        self.patience = patience
        self.refused: dict[str, Counter[str]] = {}
        self._loop = loop
        self._core = context.core
        self._listeners: dict[str, Listener | UnixListener] = {}
        self._entries: list[TlsAcceptor] = []
        self._silent: list[PendingConnections[Connection]] = []

    @property
    def secured(self) -> bool:
        """Whoever comes has to speak TLS."""
        return self.credentials.security.tls

    @property
    def listening(self) -> Collection[str]:
        """Who takes connections."""
        return self._listeners

    @property
    def unfinished(self) -> int:
        """Handshakes that go on now, and connections that have shown neither a certificate nor a frame."""
        return sum(entry.unfinished for entry in self._entries) + sum(map(len, self._silent))

    def refusals(self, name: str) -> Counter[str]:
        """Of this name."""
        return self.refused.setdefault(name, Counter(dict.fromkeys(WORDS, 0)))

    def entry(
        self,
        name: str,
        taker: OnConnection,
        open_now: Callable[[], int],
        *protocols: str,
        clients: str | None = None,
        crowd: PendingConnections[Any] | None = None,
        local: bool = False,
    ) -> Accepted:
        """What takes connections for a front, which gets those that were let in. open_now: how many it has.
        protocols: words of ALPN. clients: see Credentials.context. crowd: those that the front itself looks
        after until they have shown what they want. local: it is for Unix sockets, without TLS. Raises
        SecurityError if there is nothing to show to those who come."""
        refused = self.refusals(name)
        most = self.credentials.security.connections
        silent = self._silent_at(refused) if crowd is None else crowd

        def let_in(connection: socket.socket, peer: str) -> None:
            if open_now() >= most and not silent.put_out_oldest():
                refused["crowded"] += 1
                connection.close()
                return
            channel = channel_of(connection)
            line = taker(connection, peer)
            if line is not None and (channel is None or not channel.peer_certificate):
                line.join(silent)

        if local or not self.secured:
            return let_in
        self._context(protocols, clients)
        entry = TlsAcceptor(
            self._loop,
            partial(self._channel, protocols, clients),
            let_in,
            refused,
            patience=self.patience,
            most=self.credentials.security.unfinished,
        )
        self._entries.append(entry)
        return entry.accepted

    def listen(self, name: str, host: str, port: int, accepted: Accepted) -> Listener:
        """Raises AddressInUse, AddressError, and SecurityError where strangers could come."""
        listener = Listener(self._loop, host, port, accepted, allowed=self.check)
        self._listeners[name] = listener
        return listener

    def listen_local(self, name: str, address: Address, accepted: Accepted) -> UnixListener:
        """At a Unix socket. Raises AddressInUse, AddressError."""
        listener = UnixListener(self._loop, address, accepted)
        self._listeners[name] = listener
        return listener

    def shut(self) -> None:
        """Nobody is let in any more; who is in stays. Idempotent."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for entry in self._entries:
            entry.close()

    def check(self, host: str, where: str) -> None:
        """Raises SecurityError where strangers could come: these protocols know no token."""
        check_listening(host, where, self.credentials.security, token=False)

    def _silent_at(self, refused: Counter[str]) -> PendingConnections[Connection]:
        """Those who have not sent a frame. They have no timer: a program may connect long before it sends."""

        def put_out(line: Connection, word: str) -> bool:
            out = line.put_out()
            refused[word] += out
            return out

        made: PendingConnections[Connection] = PendingConnections(
            self._loop, put_out, patience=None, most=self.credentials.security.unfinished
        )
        self._silent.append(made)
        return made

    def _channel(self, protocols: tuple[str, ...], clients: str | None, fd: int) -> TlsChannel:
        made: TlsChannel = self._core.TlsChannel(self._context(protocols, clients), fd)
        return made

    def _context(self, protocols: tuple[str, ...], clients: str | None) -> TlsContext:
        return self.credentials.context(server=True, protocols=protocols, clients=clients)
