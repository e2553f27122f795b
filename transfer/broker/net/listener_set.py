"""The TCP listeners of a broker's fronts.

They perform TLS handshakes, and limit the number of connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.broker.core.refusal_reasons import WORDS
from transfer.broker.net.listener import Accepted, LoopListener
from transfer.broker.net.pending_connections import PendingConnections
from transfer.broker.net.tls_acceptor import TlsAcceptor
from transfer.broker.net.tls_socket import channel_of
from transfer.transports.ipc import IpcTransport
from transfer.transports.security.guard import check_listening

if TYPE_CHECKING:
    import transfer
    from transfer.broker.net.connection import Connection
    from transfer.transports.address import Address
    from transfer.transports.core.contract import TlsChannel, TlsContext

#: takes an accepted connection; returns a Connection if ListenerSet has to limit it until its first frame
OnConnection = Callable[[socket.socket, str], "Connection | None"]


class ListenerSet:
    """The listeners of the fronts, on the broker's loop.

    context: its credentials authenticate the broker. patience: seconds for a handshake.
    refused: numbers of refused connections, by front and reason.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: transfer.Context, patience: float) -> None:
        self.credentials = context.credentials
        self.patience = patience
        self.refused: dict[str, Counter[str]] = {}
        self._loop = loop
        self._core = context.core
        self._listeners: dict[str, LoopListener | _UnixListener] = {}
        self._tls_acceptors: list[TlsAcceptor] = []
        self._silent: list[PendingConnections[Connection]] = []

    @property
    def secured(self) -> bool:
        """Whether connections have to use TLS."""
        return self.credentials.security.tls

    @property
    def listening(self) -> Collection[str]:
        """Names of the fronts that accept connections."""
        return self._listeners

    @property
    def unfinished(self) -> int:
        """Number of running handshakes, and of connections that have sent no certificate and no frame."""
        return sum(one.unfinished for one in self._tls_acceptors) + sum(map(len, self._silent))

    def refusals(self, name: str) -> Counter[str]:
        """Returns a front's refused connections by reason."""
        return self.refused.setdefault(name, Counter(dict.fromkeys(WORDS, 0)))

    def acceptor(
        self,
        name: str,
        taker: OnConnection,
        open_now: Callable[[], int],
        *protocols: str,
        clients: str | None = None,
        pending: PendingConnections[Any] | None = None,
        local: bool = False,
    ) -> Accepted:
        """Returns a function that checks new connections, and passes accepted ones to a front.

        taker: the front. open_now: number of its connections. protocols: words of ALPN. clients: see
        Credentials.context. pending: unfinished connections, if the front limits them itself. local: for Unix
        sockets, without TLS. Raises SecurityError if the broker has no certificate to show.
        """
        refused = self.refusals(name)
        most = self.credentials.security.max_connections
        silent = self._silent_at(refused) if pending is None else pending

        def accept(connection: socket.socket, peer: str) -> None:
            if open_now() >= most and not silent.evict_oldest():
                refused["crowded"] += 1
                connection.close()
                return
            channel = channel_of(connection)
            made = taker(connection, peer)
            if made is not None and (channel is None or not channel.peer_certificate):
                made.join(silent)

        if local or not self.secured:
            return accept
        self._context(protocols, clients)
        tls_acceptor = TlsAcceptor(
            self._loop,
            partial(self._channel, protocols, clients),
            accept,
            refused,
            patience=self.patience,
            most=self.credentials.security.max_unauthenticated,
        )
        self._tls_acceptors.append(tls_acceptor)
        return tls_acceptor.accepted

    def listen(self, name: str, host: str, port: int, accepted: Accepted) -> LoopListener:
        """Listens at a TCP port.

        Raises AddressInUse, AddressError, and SecurityError where clients could connect without
        authentication.
        """
        listener = LoopListener(self._loop, host, port, accepted, allowed=self.check)
        self._listeners[name] = listener
        return listener

    def listen_local(self, name: str, address: Address, accepted: Accepted) -> _UnixListener:
        """Listens at a Unix socket. Raises AddressInUse, AddressError."""
        listener = _UnixListener(self._loop, address, accepted)
        self._listeners[name] = listener
        return listener

    def close(self) -> None:
        """Stops accepting connections; accepted ones stay open. Idempotent."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        for tls_acceptor in self._tls_acceptors:
            tls_acceptor.close()

    def check(self, host: str, where: str) -> None:
        """Raises SecurityError where clients could connect unauthenticated: the protocols have no token."""
        check_listening(host, where, self.credentials.security, token=False)

    def _silent_at(self, refused: Counter[str]) -> PendingConnections[Connection]:
        """Makes a limit for silent connections.

        It has no timer: a program may connect long before it sends.
        """

        def evict(connection: Connection, reason: str) -> bool:
            closed = connection.evict()
            refused[reason] += closed
            return closed

        made: PendingConnections[Connection] = PendingConnections(
            self._loop, evict, patience=None, most=self.credentials.security.max_unauthenticated
        )
        self._silent.append(made)
        return made

    def _channel(self, protocols: tuple[str, ...], clients: str | None, fd: int) -> TlsChannel:
        made: TlsChannel = self._core.TlsChannel(self._context(protocols, clients), fd)
        return made

    def _context(self, protocols: tuple[str, ...], clients: str | None) -> TlsContext:
        return self.credentials.context(server=True, protocols=protocols, clients=clients)


class _UnixListener(LoopListener):
    """A Listener at a Unix socket: a file for only this user (mode 0600), or an abstract one.

    endpoint: where it listens. Raises AddressInUse, AddressError.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, accepted: Accepted) -> None:
        self._local = IpcTransport().listen(address)
        self.endpoint = str(self._local.address)
        super().__init__(loop, self.endpoint, 0, accepted, made=socket.socket(fileno=self._local.fileno()))

    def close(self) -> None:
        """See Listener. It also removes the file."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.detach()
            self._local.close()

    def _accept(self) -> tuple[socket.socket, str] | None:
        return self._local.accept()
