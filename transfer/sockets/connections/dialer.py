"""The start of a socket's connections: the hello, the options, the change to another transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.sockets.connections.topic_positions import BEGIN, EPOCH, LOG
from transfer.transports import registry
from transfer.transports.config import DescriptorOptions
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.upgrade import Surroundings, Upgrade

if TYPE_CHECKING:
    from transfer.sockets.connections.state import ConnectionState
    from transfer.sockets.socket import Socket
    from transfer.transports.address import Address
    from transfer.transports.handshake.hello import Agreement


class Dialer:
    """Reads the options of the socket and its context, and changes nothing."""

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._pattern, self._context = state.pattern, state.context

    def hello(self, instance: str = "", address: Address | None = None) -> Any:
        """Makes this side's hello. address: the address to connect to."""
        socket = self._state.socket()
        if socket is None:  # the socket was closed: the result of the handshake is discarded
            return make_hello(self._pattern.socket_type, offer=self._context.offer)
        extra: dict[str, Any] = {"heartbeat_ms": socket.heartbeat_ivl} if socket.heartbeat_ivl else {}
        if address is not None and address.begin:
            extra[BEGIN] = address.begin
        if self._state.catch_up_source is not None:
            extra[LOG], extra[EPOCH] = self._state.catch_up_source.log
        return make_hello(
            self._pattern.socket_type,
            routing_id=socket.routing_id,
            instance=instance,
            max_message=socket.largest_message,
            offer=self._context.offer,
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
            socket_type=self._pattern.socket_type,
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

    @staticmethod
    def transport_options(socket: Socket) -> DescriptorOptions:
        return DescriptorOptions(
            send_buffer=max(0, socket.sndbuf),
            receive_buffer=max(0, socket.rcvbuf),
            keepalive=socket.tcp_keepalive,
            keepalive_idle=socket.tcp_keepalive_idle,
            keepalive_interval=socket.tcp_keepalive_intvl,
            keepalive_count=socket.tcp_keepalive_cnt,
        )

    @staticmethod
    def connect_options(socket: Socket) -> ConnectOptions:
        first = max(0, socket.reconnect_ivl) / 1000.0
        return ConnectOptions(
            connect_timeout=socket.connect_timeout / 1000.0 or 30.0,
            handshake_timeout=handshake_timeout(socket),
            reconnect_first=first,
            reconnect_limit=socket.reconnect_ivl_max / 1000.0,
        )


def handshake_timeout(socket: Socket) -> float:
    """Returns the timeout of a handshake, in seconds."""
    return float(socket.handshake_ivl / 1000.0 or 30.0)
