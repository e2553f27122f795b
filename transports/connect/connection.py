"""What a connection is, who owns it, and what its owner is asked: shared by both sides of `establish.py`."""

from __future__ import annotations

import os
import socket
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from transfer.transports.address import Address
from transfer.transports.base import Stream, Transport
from transfer.transports.connect.pending import MOST
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import AddressInUse, Fatal, HandshakeError, TransferError
from transfer.transports.handshake.choice import HINT, encrypted, permitted
from transfer.transports.handshake.compatibility import common_peers
from transfer.transports.handshake.curve import CurveKeys
from transfer.transports.handshake.exchange import Exchange, OnEnd, wished
from transfer.transports.handshake.handshake import Admits, Handshake
from transfer.transports.handshake.hello import Agreement, Hello
from transfer.transports.handshake.upgrade import Made, UpgradeFactory
from transfer.transports.peercred import peer_host, same_user
from transfer.transports.reactor import Reactor
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.guard import check_listening, check_passwords, is_loopback, on_loopback
from transfer.transports.security.mechanism import NO_MECHANISM, PLAIN, Mechanism


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection after its handshake. The receiver of this object owns it.

    fd: a connected, non-blocking stream socket, detached from Python's socket object. Without a
        `stream` it is for `core.Stream(fd, ...)`; no byte after the hello was read from it. With
        one it is the control connection, which belongs to the stream: for watching only.
        -1: the stream has none (inproc).
    stream: a foreign stream, else None.
    carrier: carries large payloads apart from `fd`, else None. See core/contract.pyi, Carrier.
    channel: of `Made`, else None.
    agreement: the result of the handshake; `agreement.remote` is the peer's hello.
    endpoint: the bound or connected endpoint of the connection.
    peer: the peer's address as text, for logs ("127.0.0.1:40312").
    """

    fd: int
    stream: Stream | None
    agreement: Agreement
    endpoint: Address
    peer: str
    carrier: Any = None
    channel: Any = None

    @classmethod
    def of(cls, made: Made, agreement: Agreement, endpoint: Address, peer: str) -> Connected:
        """From the result of an upgrade."""
        return cls(made.fd, made.stream, agreement, endpoint, peer, made.carrier, made.channel)

    def discard(self) -> None:
        """Closes the connection, when no owner takes it."""
        if self.carrier is not None:
            self.carrier.close()
        if self.stream is not None:
            self.stream.close()
        elif self.fd >= 0:
            os.close(self.fd)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The time limits of a connector, in seconds.

    connect_timeout: for the name lookup and the connect of each attempt.
    handshake_timeout: from the connect to the end of the handshake.
    reconnect_first: the first pause is a random time up to this; each further one up to twice that.
    reconnect_limit: no pause is longer; 0: the pauses do not grow (as in pyzmq).
    prepare: called before the first attempt, in a separate thread, as it may take a second.
    """

    connect_timeout: float = 30.0
    handshake_timeout: float = 30.0
    reconnect_first: float = 0.1
    reconnect_limit: float = 5.0
    prepare: Callable[[], object] | None = None


HelloFactory = Callable[[], Hello]  # a fresh nonce for each connection: see identity.make_hello
#: it owns the connection from then on, unless it raises
OnConnected = Callable[[Connected], object]
#: (error, the peer's address). HandshakeError or ProtocolError: the peer's; OutOfDescriptors: accepting
#: pauses
OnRefused = Callable[[TransferError, str], object]
#: one attempt failed (Broken: no connection; HandshakeError: no agreement; AddressError: no such
#: name). The connector retries by itself, except after Fatal (policy `require`).
OnFailed = Callable[[TransferError], object]
OnDelayed = Callable[[], object]  # the connect is in progress and did not complete at once
OnRetried = Callable[[float], object]  # seconds until the next attempt


class Acceptor(Protocol):
    """A bound endpoint with its handshakes. Thread-safe."""

    #: the endpoint as bound, with the real port
    address: Address

    def close(self) -> None:
        """Stops listening at once and ends unfinished handshakes; connections that were handed out stay.

        Idempotent, never waits. A callback that runs at this moment in the reactor's thread may
        still finish.
        """


class Connector(Protocol):
    """Keeps one endpoint connected. Thread-safe. It starts with its construction."""

    address: Address

    def lost(self) -> None:
        """The owner reports that the connection it got has ended: the connector reconnects, after a pause.

        Ignored while no connection is handed out, so reporting it twice is fine.
        """

    def close(self) -> None:
        """Stops connecting. Idempotent, never waits; a connection that was handed out stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What the owner of an endpoint sends in handshakes, and with what it authenticates.

    mechanism: ZeroMQ's, of this side. networked: peers connect over a network. credentials: None where only
    trusted peers can connect, and no side authenticates. admits: raises HandshakeError for a peer that cannot
    be accepted now; called on an accepting side, and on both where they meet in one step.
    """

    hello: HelloFactory
    admits: Admits | None = None
    upgrades: UpgradeFactory | None = None
    credentials: Credentials | None = None
    mechanism: Mechanism = NO_MECHANISM
    networked: bool = True

    def exchange(
        self,
        reactor: Reactor,
        connection: socket.socket,
        address: Address,
        peer: str,
        on_end: OnEnd,
        *,
        base: str,
        server_name: str | None = None,
        user: int | None = None,
        refusal: HandshakeError | None = None,
    ) -> Exchange:
        """Starts the handshake on a new connection, which belongs to the exchange, unless this raises.

        base: the transport's scheme. server_name: of the endpoint that was connected to; None: the connection
        was accepted. user: of the listener; None: the user of this process. refusal: the error that the peer
        gets. Raises TransferError.
        """
        connecting = server_name is not None
        keys = CurveKeys(self.mechanism) if self.mechanism.encrypts else None
        secure: Callable[[int], Any] | None = keys.channel if keys is not None else None
        if keys is None and self.networked:
            secure = self.secure(server_name or "")
        tokens = self.tokens
        if not self.networked:
            tokens, of_strangers = self._local_requirements(connection, user)
            refusal = refusal or of_strangers
        if refusal is not None and connecting:
            raise refusal  # before anything is sent
        hello = wished(self.hello(), address, base)
        allowed = permitted(hello.offer, known=self.guarded, loopback=on_loopback(connection))
        if keys is not None:
            allowed = encrypted(allowed)
        handshake = Handshake(
            replace(hello, offer=allowed),
            connecting=connecting,
            base=base,
            upgrades=self.upgrades,
            tokens=tokens,
            guarded=self.guarded,
            refusal=refusal,
            admits=None if connecting else self.admits,
            mechanism=self.mechanism if connecting else self._mechanism_at(address),
            keys=keys,
            address=peer_host(connection) if self.mechanism.approves else "",
        )
        begins = connecting if keys is None else self.mechanism.is_client
        return Exchange(reactor, connection, handshake, peer, on_end, secure, begins=begins)

    def _mechanism_at(self, address: Address) -> Mechanism:
        """That of a bound endpoint. Where other machines can connect, it requires an authenticator."""
        exposed = self.networked and not is_loopback(address.host)
        if not exposed or self.credentials is None or self.credentials.security.unauthenticated:
            return self.mechanism
        return replace(self.mechanism, required=True)

    def _local_requirements(
        self, connection: socket.socket, user: int | None
    ) -> tuple[tuple[bytes, ...], HandshakeError | None]:
        """(tokens that a peer on this host may prove, why it is refused). A process of the same user, which
        has the same rights as this one, needs no authentication. Both sides decide alike."""
        if connection.family != socket.AF_UNIX or same_user(connection, user):
            return (), None
        tokens = self.tokens
        bare = self.guarded and not tokens and not self.mechanism.encrypts
        return tokens, _other_user() if bare else None

    @property
    def socket_type(self) -> SocketType:
        return self.hello().socket_type

    @property
    def tokens(self) -> tuple[bytes, ...]:
        return () if self.credentials is None else self.credentials.tokens()

    @property
    def guarded(self) -> bool:
        """Unauthenticated peers get little information."""
        known = self.credentials is not None and self.credentials.security.any
        return known or self.mechanism.encrypts

    def secure(self, server_name: str) -> Callable[[int], Any] | None:
        """Makes TLS for a descriptor; None: no TLS. server_name: of the endpoint that was connected to.
        Raises SecurityError where TLS cannot be made."""
        credentials = self.credentials
        if credentials is None or not credentials.security.tls:
            return None
        if not server_name:
            credentials.check_server()
        kind = self.socket_type.name if server_name else ""
        return partial(credentials.channel, server_name=server_name, socket_type=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptorOwner(Owner):
    """The owner of a bound endpoint, and its callbacks. shares_endpoint: sockets of the same context may bind
    the endpoint too, if no peer can talk to both."""

    on_connected: OnConnected
    on_failed: OnRefused
    shares_endpoint: bool = True

    @property
    def requires_tls(self) -> bool:
        """Peers have to connect with TLS."""
        if self.mechanism.encrypts:
            return self.mechanism.server
        return self.networked and self.credentials is not None and self.credentials.security.tls

    @property
    def speaks_first(self) -> bool:
        """This side begins TLS, although the peer connects: a client of CURVE."""
        return self.mechanism.encrypts and self.mechanism.is_client

    @property
    def most_unfinished(self) -> int:
        """The limit of concurrent handshakes."""
        return MOST if self.credentials is None else self.credentials.security.max_unauthenticated

    def check_listening(self, address: Address) -> None:
        """Raises SecurityError if peers could connect there without authentication, or if none could."""
        if self.mechanism.encrypts or self.credentials is None or not self.networked:
            return
        if self.mechanism.name == PLAIN and self.mechanism.server:
            check_passwords(address.host, str(address), self.credentials.security)
        else:
            check_listening(address.host, str(address), self.credentials.security)
        self.secure("")  # without a certificate no peer could connect


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOwner(Owner):
    """The owner of a connector. begins: raises HandshakeError where no handshake may start now, for the other
    side sends messages as soon as it has ended."""

    begins: Callable[[], object] | None = None
    on_connected: OnConnected
    on_failed: OnFailed
    on_delayed: OnDelayed | None = None
    on_retried: OnRetried | None = None


class DirectTransport(Transport):
    """A transport that makes foreign streams and meets its peer without descriptors."""

    @abstractmethod
    def serve(self, reactor: Reactor, address: Address, owner: AcceptorOwner) -> Acceptor: ...

    @abstractmethod
    def reach(
        self, reactor: Reactor, address: Address, owner: ConnectorOwner, options: ConnectOptions
    ) -> Connector: ...


def _other_user() -> HandshakeError:
    return HandshakeError(
        "token",
        "the peer runs under another user, and this side needs certificates, which ipc:// does not carry",
        hint="give both sides a token (TRANSFER_TOKEN_FILE), or meet by tcp://",
    )


def check_sharing(address: Address, one: AcceptorOwner | None, other: AcceptorOwner | None) -> None:
    """Raises AddressInUse unless both may bind the address, because no peer can talk to both of them."""
    if one is None or other is None or not (one.shares_endpoint and other.shares_endpoint):
        raise AddressInUse(f"{address} is in use", hint="it can be bound once: take another port or name")
    both = common_peers(one.socket_type, other.socket_type)
    if both:
        raise AddressInUse(
            f"{address} is in use by a {one.socket_type.name}, which talks to {both} too",
            hint="sockets that share an endpoint need peers of different types, as PULL, REP and PUB have",
        )


def hand_over(connected: Connected, on_connected: OnConnected) -> None:
    """Passes a connection to its owner. Closes it and raises if `on_connected` raises."""
    try:
        on_connected(connected)
    except BaseException:
        connected.discard()
        raise


def final(address: Address, error: TransferError) -> TransferError:
    """Returns Fatal for an error that no further attempt can correct: a policy is not met."""
    if not isinstance(error, HandshakeError) or error.reason != "policy":
        return error
    fatal = Fatal(f"{address}: {error.message}", hint=error.hint or HINT)
    fatal.__cause__ = error
    return fatal
