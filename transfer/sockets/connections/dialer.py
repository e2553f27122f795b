"""The start of a socket's connections: the hello, the options, the change to another transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from transfer.patterns.xpub_xsub import UPSTREAM, XPublisher, XSubscriber
from transfer.sockets.connections.topic_positions import BEGIN, EPOCH, LOG
from transfer.transports import registry
from transfer.transports.address import BASE, Address
from transfer.transports.config import DescriptorOptions
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.handshake.choice import permitted
from transfer.transports.handshake.identity import FEATURES, make_hello, new_nonce
from transfer.transports.handshake.upgrade import Surroundings, Upgrade
from transfer.transports.security.guard import is_loopback

if TYPE_CHECKING:
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.peer import Endpoint
    from transfer.sockets.socket import Socket
    from transfer.transports.handshake.hello import Agreement


_OF_DESCRIPTORS = itemgetter(
    "sndbuf", "rcvbuf", "tcp_keepalive", "tcp_keepalive_idle", "tcp_keepalive_intvl", "tcp_keepalive_cnt"
)
_OF_CONNECTORS = itemgetter("connect_timeout", "handshake_ivl", "reconnect_ivl", "reconnect_ivl_max")
_UPSTREAM_TYPES = (XPublisher, XSubscriber)


class Dialer:
    """Reads the options of the socket and its context, and changes nothing."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._pattern, self._context = state.pattern, state.context

    def hello(self, record: Endpoint | None = None) -> Any:
        """Makes this side's hello. record: of the endpoint to connect to."""
        socket = self._state.socket()
        if socket is None:  # the socket was closed: the result of the handshake is discarded
            return make_hello(self._pattern.socket_type.on_wire, offer=self._context.offer)
        extra: dict[str, Any] = {"heartbeat_ms": socket.heartbeat_ivl} if socket.heartbeat_ivl else {}
        if record is not None and not record.instance:
            record.instance = new_nonce()
        if record is not None and record.address.begin:
            extra[BEGIN] = record.address.begin
        if self._state.catch_up_source is not None:
            extra[LOG], extra[EPOCH] = self._state.catch_up_source.log
        return make_hello(
            self._pattern.socket_type.on_wire,
            routing_id=socket.routing_id,
            instance="" if record is None else record.instance,
            max_message=socket.largest_message,
            offer=self._context.offer,
            features=FEATURES | {UPSTREAM} if isinstance(self._pattern, _UPSTREAM_TYPES) else FEATURES,
            lazy=not socket.immediate,
            extra=extra,
        )

    def upgrade(self, agreement: Agreement, connecting: bool) -> Upgrade:
        """Prepares this side's change to the chosen transport. Raises Declined."""
        socket = self._state.owner()
        around = Surroundings(
            core=self._context.core,
            reactor=self._context.reactor,
            flusher=self._context.flusher,
            pool=self._context.pool,
            socket_type=self._pattern.socket_type.on_wire,
            max_message=socket.largest_message,
            send_high_water=socket.sndhwm,
            send_high_water_bytes=socket.sndhwm_bytes,
            credits=self._pattern.confirms and "credit" in agreement.features,
            checksum=socket.checksum,
            options=self.transport_options(socket),
            shared=self._context.shared,
            own=self._state.own,
        )
        return registry.upgrade(agreement.choice.transport)(around, agreement, connecting=connecting)

    def preparation(self, address: Address) -> Callable[[], None] | None:
        """Returns a function that loads what the endpoint's transport needs, if that takes long. Not for the
        reactor's thread."""
        if address.scheme in ("inproc", "ipc"):
            return None
        offer = self._context.offer
        if registry.preparation(offer, address.scheme) is None:
            return None
        if address.scheme == BASE:  # other transports are named by the scheme
            known, loopback = self._context.credentials.security.any, is_loopback(address.host)
            offer = permitted(offer, known=known, loopback=loopback)
        return registry.preparation(offer, address.scheme)

    @staticmethod
    def transport_options(socket: Socket) -> DescriptorOptions:
        return _descriptor_options(*_OF_DESCRIPTORS(socket._values))

    @staticmethod
    def connect_options(socket: Socket, prepare: Callable[[], None] | None = None) -> ConnectOptions:
        options = _connect_options(*_OF_CONNECTORS(socket._values))
        return options if prepare is None else replace(options, prepare=prepare)


# Most sockets have the same options: they share one object.


@lru_cache
def _descriptor_options(send_buffer: int, receive_buffer: int, *keepalive: int) -> DescriptorOptions:
    return DescriptorOptions(max(0, send_buffer), max(0, receive_buffer), *keepalive)


@lru_cache
def _connect_options(connect_ms: int, handshake_ms: int, first_ms: int, limit_ms: int) -> ConnectOptions:
    return ConnectOptions(
        connect_timeout=connect_ms / 1000.0 or 30.0,
        handshake_timeout=handshake_ms / 1000.0 or 30.0,
        reconnect_first=max(0, first_ms) / 1000.0,
        reconnect_limit=limit_ms / 1000.0,
    )


def handshake_timeout(socket: Socket) -> float:
    """Returns the timeout of a handshake, in seconds."""
    return float(socket.handshake_ivl / 1000.0 or 30.0)
