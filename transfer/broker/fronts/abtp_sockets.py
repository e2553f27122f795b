"""The two libzmq sockets of the abtp front, and their options."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from transfer.broker.protocols.abtp import PUB_ENDPOINT, ROUTER_ENDPOINT
from transfer.transports.errors import AddressError, AddressInUse, TransferError

#: bytes that a frame may have in addition to the largest payload: the rest of its envelope
_ENVELOPE_ROOM = 1 << 20
#: milliseconds in which answers may leave when the broker ends
_LINGER = 200


@dataclass(frozen=True, slots=True)
class AbtpSettings:
    """Settings of the abtp front. router, pub: endpoints; port 0 is a free one.

    max_payload: bytes of a payload. batch: messages of one turn. unkept, unkept_bytes: messages that may wait
    for the disk before producers are throttled. peer_queue, sub_queue: messages that may wait in the sockets
    for one peer. peer_bytes: bytes that may wait there for a peer of the ROUTER, unless one message alone is
    larger. peer_unread: messages of one peer that libzmq reads before the broker does. route_grace: seconds
    that a message waits for a consumer that disconnected a moment ago; awaiting, awaiting_of_topic: such
    messages, in all and of one topic.
    """

    router: str = ROUTER_ENDPOINT
    pub: str = PUB_ENDPOINT
    max_payload: int = 16 << 20
    batch: int = 128
    unkept: int = 8192
    unkept_bytes: int = 256 << 20
    peer_queue: int = 8192
    peer_bytes: int = 64 << 20
    sub_queue: int = 1000
    peer_unread: int = 256
    route_grace: float = 5.0
    awaiting: int = 4096
    awaiting_of_topic: int = 256


def open_sockets(
    context: zmq.Context[zmq.Socket[bytes]], settings: AbtpSettings
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Opens the ROUTER and the XPUB; they belong to the context. HEARTBEAT_IVL stays off: libzmq 4.3.5 aborts
    the process when it pings a peer that has closed while its input was stopped (RCVHWM). A peer's PING
    does the same: see abtp_relay."""
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # Its own dead connection must not keep out a client that reconnects with its identity.
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.SNDHWM, settings.peer_queue)
    router.setsockopt(zmq.RCVHWM, settings.peer_unread)
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.SNDHWM, settings.sub_queue)
    for socket in (router, pub):
        socket.setsockopt(zmq.MAXMSGSIZE, settings.max_payload + _ENVELOPE_ROOM)
        socket.setsockopt(zmq.LINGER, _LINGER)
        socket.setsockopt(zmq.BACKLOG, 4096)  # as the broker's other listeners
    return router, pub


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Binds a socket and returns its endpoint. Raises AddressInUse, AddressError."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise _address_error(endpoint, error) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _address_error(endpoint: str, error: zmq.ZMQError) -> TransferError:
    if error.errno == zmq.EADDRINUSE:
        return AddressInUse(
            f"{endpoint}: {error}", hint="end the program that uses it, or choose another port"
        )
    return AddressError(f"{endpoint}: {error}", hint="use tcp://host:port with an address of this machine")
