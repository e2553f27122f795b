"""The state of a socket in the Mooncake API: its endpoints and options."""

from __future__ import annotations

from typing import Any

from transfer.mooncake.channel import Channel
from transfer.mooncake.endpoints import complete
from transfer.mooncake.message import CallbackCodec
from transfer.mooncake.requests import Patience
from transfer.mooncake.types import ZmqConfig, ZmqSocketOption, ZmqSocketType, as_option
from transfer.transports.errors import NotSupported, StateError

Topic = str | bytes | None

_OPTIONS = {
    ZmqSocketOption.RCVTIMEO: "rcvtimeo",
    ZmqSocketOption.SNDTIMEO: "sndtimeo",
    ZmqSocketOption.SNDHWM: "sndhwm",
    ZmqSocketOption.RCVHWM: "rcvhwm",
    ZmqSocketOption.LINGER: "linger",
    ZmqSocketOption.RECONNECT_IVL: "reconnect_ivl",
    ZmqSocketOption.RCVBUF: "rcvbuf",
    ZmqSocketOption.SNDBUF: "sndbuf",
}


class InterfaceSettings:
    """The type, endpoints and options of a socket. Thread-safe."""

    def __init__(self, number: int, kind: ZmqSocketType, socket: Any, config: ZmqConfig) -> None:
        self.id = number
        self.kind = kind
        self._socket = socket
        self._channel = Channel(socket)
        self._config = config
        self._polling = False
        self._codec: CallbackCodec | None = None
        #: the program's text of an endpoint, and the complete endpoint
        self._bound: dict[str, str] = {}
        self._connected: dict[str, str] = {}
        self._routing_id: str | bytes = ""
        #: the timeout of a request
        self._patience = Patience(config.timeout_seconds)
        self._configure(config)

    def _configure(self, config: ZmqConfig) -> None:
        sock = self._socket
        sock.hwm = config.high_water_mark
        sock.rcvtimeo = config.rcv_timeout_ms
        sock.sndtimeo = config.snd_timeout_ms
        sock.linger = config.linger_ms
        sock.reconnect_ivl = config.reconnect_interval_ms
        # The defaults would make large tensors slow; a program that sets a size needs it.
        if config.rcv_buffer_size != ZmqConfig.rcv_buffer_size:
            sock.rcvbuf = config.rcv_buffer_size
        if config.snd_buffer_size != ZmqConfig.snd_buffer_size:
            sock.sndbuf = config.snd_buffer_size
        if config.rcv_timeout_ms != ZmqConfig.rcv_timeout_ms:
            self._patience = Patience(config.rcv_timeout_ms / 1000, whole=False)

    # -- endpoints -----------------------------------------------------------------------------

    def bind(self, endpoint: str) -> bool:
        """Binds and listens. Raises AddressError, AddressInUse. Returns True."""
        self._socket.bind(complete(endpoint, rdma=self._config.enable_rdma))
        real = str(self._socket.last_endpoint)
        shown = real if endpoint.endswith((":0", ":*")) else endpoint
        self._bound[shown] = real
        return True

    def connect(self, endpoint: str) -> bool:
        """Starts to connect; several endpoints are allowed, except for a PAIR. Repeating one has no effect.
        Raises AddressError, StateError. Returns True."""
        if self.kind is ZmqSocketType.PAIR and (self._connected or self._socket.peers()):
            [other] = self._connected or [self._socket.peers()[0].address]
            raise StateError(
                f"a PAIR has one peer: it is connected to {other}, and cannot connect to {endpoint}",
                hint="disconnect first, or use another socket",
            )
        real = complete(endpoint, rdma=self._config.enable_rdma)
        if real in self._connected.values():
            return True
        self._socket.connect(real)
        self._connected[endpoint] = real
        return True

    def unbind(self, endpoint: str) -> bool:
        """Stops listening on an endpoint. Raises AddressError. Returns True."""
        self._socket.unbind(self._bound.pop(endpoint, None) or complete(endpoint))
        return True

    def disconnect(self, endpoint: str) -> bool:
        """Ends the connection to an endpoint. Raises AddressError. Returns True."""
        self._socket.disconnect(self._connected.pop(endpoint, None) or complete(endpoint))
        return True

    def start_server(self) -> bool:
        """Whether the socket listens, which it does after `bind`."""
        return bool(self._bound)

    def is_bound(self) -> bool:
        return bool(self._bound)

    def is_connected(self) -> bool:
        """Whether `connect` was called; the core's `peers` has the connected peers."""
        return bool(self._connected)

    def get_bound_endpoint(self) -> str:
        """The endpoint bound last, with its real port; empty if there is none."""
        return next(reversed(self._bound), "")

    def get_connected_endpoints(self) -> list[str]:
        return list(self._connected)

    def get_socket_type(self) -> ZmqSocketType:
        return self.kind

    # -- options -------------------------------------------------------------------------------

    def set_socket_option(self, option: ZmqSocketOption | int | str, value: Any) -> bool:
        """Sets an option, which applies at once. Raises OptionError. Returns True."""
        option = as_option(option)
        if option is ZmqSocketOption.ROUTING_ID:
            return self.set_routing_id(value)
        setattr(self._socket, _OPTIONS[option], value)
        if option is ZmqSocketOption.RCVTIMEO:
            self._patience = Patience(value / 1000, whole=False)
        return True

    def get_socket_option(self, option: ZmqSocketOption | int | str) -> Any:
        """Returns the value of an option."""
        option = as_option(option)
        if option is ZmqSocketOption.ROUTING_ID:
            return self._routing_id
        return getattr(self._socket, _OPTIONS[option])

    def set_routing_id(self, routing_id: str | bytes) -> bool:
        """Sets the identity for connections from now on. Returns True."""
        self._socket.routing_id = routing_id
        self._routing_id = routing_id
        return True

    def get_routing_id(self) -> str | bytes:
        """Returns the identity that was set, or an empty one."""
        return self._routing_id

    def _only(self, kind: ZmqSocketType) -> None:
        if self.kind is not kind:
            raise NotSupported(f"this is for a {kind.name}, not for a {self.kind.name}")
