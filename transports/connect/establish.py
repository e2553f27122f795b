"""From an endpoint to a connection after its handshake, and to the next one when that is lost.

`serve` binds and hands out every connection whose handshake succeeded. `reach` connects, and reconnects with
growing, jittered pauses. Both return an object with `address` and `close()`. All callbacks run in the
reactor's thread, one at a time, and must not block; they may call any method of the reactor, of the acceptor
and of the connector.

    transport = registry.open_transport(address.scheme, options)
    acceptor = serve(reactor, transport, address, hello=make_hello, on_connected=..., on_failed=...)
    connector = reach(reactor, transport, address, hello=make_hello, on_connected=..., on_failed=...)
"""

from __future__ import annotations

from collections.abc import Callable

from transfer.transports.address import Address
from transfer.transports.base import Transport
from transfer.transports.connect.acceptor import SocketAcceptor
from transfer.transports.connect.connection import (
    Acceptor,
    AcceptorOwner,
    ConnectOptions,
    Connector,
    ConnectorOwner,
    DirectTransport,
    HelloFactory,
    OnConnected,
    OnDelayed,
    OnFailed,
    OnRefused,
    OnRetried,
)
from transfer.transports.connect.connector import SocketConnector
from transfer.transports.handshake.handshake import Admits
from transfer.transports.handshake.upgrade import UpgradeFactory
from transfer.transports.reactor import Reactor
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.mechanism import NO_MECHANISM, Mechanism


def serve(
    reactor: Reactor,
    transport: Transport,
    address: Address,
    *,
    hello: HelloFactory,
    on_connected: OnConnected,
    on_failed: OnRefused,
    backlog: int = 4096,
    handshake_timeout: float = 30.0,
    upgrades: UpgradeFactory | None = None,
    credentials: Credentials | None = None,
    admits: Admits | None = None,
    mechanism: Mechanism = NO_MECHANISM,
    shares_endpoint: bool = True,
) -> Acceptor:
    """Binds `address` now, in the calling thread, and accepts until `close`.

    credentials: for this side and for its peers: all peers of a network, and on a Unix socket those of other
    users. admits, mechanism: as in `Owner`; shares_endpoint: as in `AcceptorOwner`. Raises AddressInUse,
    AddressNotAvailable, AddressError, OutOfDescriptors, SecurityError.
    """
    if not transport.capabilities.has_socket:
        credentials = None
    owner = AcceptorOwner(
        hello=hello,
        on_connected=on_connected,
        on_failed=on_failed,
        upgrades=upgrades,
        credentials=credentials,
        networked=transport.capabilities.networked,
        admits=admits,
        mechanism=mechanism,
        shares_endpoint=shares_endpoint and mechanism == NO_MECHANISM,
    )
    if isinstance(transport, DirectTransport):
        return transport.serve(reactor, address, owner)
    return SocketAcceptor(
        reactor, transport, address, owner, backlog=backlog, handshake_timeout=handshake_timeout
    )


def reach(
    reactor: Reactor,
    transport: Transport,
    address: Address,
    *,
    hello: HelloFactory,
    on_connected: OnConnected,
    on_failed: OnFailed,
    on_delayed: OnDelayed | None = None,
    on_retried: OnRetried | None = None,
    options: ConnectOptions | None = None,
    upgrades: UpgradeFactory | None = None,
    credentials: Credentials | None = None,
    admits: Admits | None = None,
    mechanism: Mechanism = NO_MECHANISM,
    begins: Callable[[], object] | None = None,
    on_begin: Callable[[], object] | None = None,
) -> Connector:
    """Starts to connect and returns at once. credentials, admits, mechanism: as in `serve`; begins: as in
    `ConnectorOwner`. on_begin: called once, before the first attempt. Raises AddressError for a wildcard."""
    options = ConnectOptions() if options is None else options

    def owner() -> ConnectorOwner:
        if on_begin is not None:
            on_begin()
        return ConnectorOwner(
            hello=hello,
            on_connected=on_connected,
            on_failed=on_failed,
            on_delayed=on_delayed,
            on_retried=on_retried,
            upgrades=upgrades,
            credentials=credentials if transport.capabilities.has_socket else None,
            networked=transport.capabilities.networked,
            admits=admits,
            mechanism=mechanism,
            begins=begins,
        )

    if isinstance(transport, DirectTransport):
        return transport.reach(reactor, address, owner(), options)
    return SocketConnector(reactor, transport, address, owner, options)
