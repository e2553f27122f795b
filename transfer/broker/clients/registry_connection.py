"""A connection to a broker's registry, by the broker's native protocol."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from transfer.broker.clients.native_errors import error_of
from transfer.broker.protocols.native import Head, Op, decode, decode_words
from transfer.constants import DONTWAIT
from transfer.transports.address import Address
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import AddressError, Again, Broken
from transfer.transports.handshake.identity import one_time_identity

if TYPE_CHECKING:
    from transfer.sockets.context import Context

#: seconds in which the broker has to answer
_ANSWER = 3.0
#: seconds of silence after which it checks whether the connection exists
_CHECK_INTERVAL = 0.25
#: milliseconds between two tries to connect, the first and the longest
_RECONNECT_MS = 100, 500


class RegistryConnection:
    """One DEALER socket. Only one thread may use it; any thread may call `close`."""

    def __init__(self, broker: Address, context: Context) -> None:
        from transfer.sockets.socket import socket_class

        self._broker = broker
        # A plain socket, also if the context makes other ones (for asyncio, pyzmq's API).
        self._socket: Any = socket_class(context.core)(context, SocketType.DEALER)
        # A new identity each time shows the broker that the earlier connection has gone.
        self._socket.identity = one_time_identity()
        self._socket.immediate = True
        self._socket.linger = 0
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = _RECONNECT_MS

    def open(self) -> None:
        """Connects. Raises Again if the broker is not there, Closed if another thread closes it."""
        self._socket.connect(str(self._broker))
        self._socket.wait_for_peers(1, _ANSWER)
        # The socket must not reconnect: requests of the lost connection would be lost without an error.
        for record in self._socket._links.state.endpoints:
            record.connector.close()

    def send(self, head: bytes) -> None:
        """Sends a request. Raises Again, Broken, Closed."""
        self._socket.send_multipart([head])

    def receive(self, seconds: float) -> tuple[Head, list[bytes]] | None:
        """Returns the next message; None if none arrives within `seconds`.

        Raises Broken when the broker has gone, Closed, and the broker's refusals (UsageError and others).
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                frames = self._socket.recv_frames(DONTWAIT)
            except Again:
                left = deadline - time.monotonic()
                if not self._socket.peers():
                    raise Broken(f"the broker at {self._broker} has gone") from None
                if left <= 0:
                    return None
                self._socket.poll(max(1, int(min(left, _CHECK_INTERVAL) * 1000)))
                continue
            head = decode(bytes(frames[0].data))
            if head.op is Op.REFUSED:
                raise error_of(decode_words(head))
            return head, [bytes(frame.data) for frame in frames[1:]]

    def answer(self, op: Op) -> tuple[Head, list[bytes]]:
        """Returns the next message of this kind.

        Raises as `receive`, and Broken if it does not come in time.
        """
        deadline = time.monotonic() + _ANSWER
        while (left := deadline - time.monotonic()) > 0:
            message = self.receive(left)
            if message is not None and message[0].op is op:
                return message
        raise Broken(f"the broker at {self._broker} does not answer")

    def close(self, linger: float = 0) -> None:
        """Closes the connection. Idempotent."""
        self._socket.close(linger)


def broker_of(address: Address) -> tuple[Address, str]:
    """Returns (the broker's address, the name) of a `registry://` endpoint. Raises AddressError."""
    if address.scheme != "registry":
        raise AddressError(f"{address} is no registry", hint="write registry://broker:5580/name")
    return Address("tcp", address.host, address.port), address.path


def host_towards(broker: Address) -> str:
    """Returns the IP address by which this machine reaches the broker. Raises AddressError."""
    try:
        found = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise AddressError(
            f"this machine has no known address that reaches {broker}: {error}",
            hint="name the host: TRANSFER_ADVERTISE, or advertise=",
        ) from error
