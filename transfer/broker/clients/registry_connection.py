"""A connection to a broker's registry, by the broker's own protocol."""

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

#: seconds that the broker has for any answer
ANSWER = 3.0
#: seconds without a word behind which it is looked whether the broker is there
_LOOK = 0.25
#: milliseconds between two tries to connect, the first and the longest
_RECONNECT_MS = 100, 500


class RegistryConnection:
    """One DEALER, for one thread; `close` for any."""

    def __init__(self, broker: Address, context: Context) -> None:
        from transfer.sockets.socket import socket_class

        self._broker = broker
        # Of the plain kind, whatever the context's own sockets are (asyncio's, pyzmq's).
        self._socket: Any = socket_class(context.core)(context, SocketType.DEALER)
        # Another one each time: the broker then knows that the earlier connection has gone.
        self._socket.identity = one_time_identity()
        self._socket.immediate = True
        self._socket.linger = 0
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = _RECONNECT_MS

    def open(self) -> None:
        """Connects. Raises Again if the broker is not there, Closed if somebody closes it meanwhile."""
        self._socket.connect(str(self._broker))
        self._socket.wait_for_peers(1, ANSWER)
        # Not made again by itself when it is lost: what was said would be lost in silence.
        for record in self._socket._links.endpoints:
            record.connector.close()

    def say(self, head: bytes) -> None:
        """Raises Again, Broken, Closed."""
        self._socket.send_multipart([head])

    def hear(self, seconds: float) -> tuple[Head, list[bytes]] | None:
        """The next word; None: there was none. Raises Broken when the broker has gone, Closed, and what it
        refused (UsageError and others)."""
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
                self._socket.poll(max(1, int(min(left, _LOOK) * 1000)))
                continue
            head = decode(bytes(frames[0].data))
            if head.op is Op.REFUSED:
                raise error_of(decode_words(head))
            return head, [bytes(frame.data) for frame in frames[1:]]

    def answer(self, op: Op) -> tuple[Head, list[bytes]]:
        """The next word of this kind. Raises as `hear`, and Broken if it does not come in time."""
        deadline = time.monotonic() + ANSWER
        while (left := deadline - time.monotonic()) > 0:
            heard = self.hear(left)
            if heard is not None and heard[0].op is op:
                return heard
        raise Broken(f"the broker at {self._broker} does not answer")

    def close(self, linger: float = 0) -> None:
        """Idempotent."""
        self._socket.close(linger)


def broker_of(address: Address) -> tuple[Address, str]:
    """(where the broker is, the name) of a `registry://` endpoint. Raises AddressError for another one."""
    if address.scheme != "registry":
        raise AddressError(f"{address} is no registry", hint="write registry://broker:5580/name")
    return Address("tcp", address.host, address.port), address.path


def host_towards(broker: Address) -> str:
    """The number of this machine by which it reaches the broker. Raises AddressError."""
    try:
        found = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = sorted(found, key=lambda one: one[0] != socket.AF_INET)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise AddressError(
            f"no address of this machine is known by which {broker} is reached: {error}",
            hint="name the host: TRANSFER_ADVERTISE, or advertise=",
        ) from error
