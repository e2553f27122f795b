"""The two libzmq sockets of the abtp front, and what they are set to."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from transfer.broker.protocols.abtp import PUB_ENDPOINT, ROUTER_ENDPOINT
from transfer.transports.errors import AddressError, AddressInUse, TransferError

#: bytes that a frame may have beyond the largest payload: the rest of its envelope
_ENVELOPE_ROOM = 1 << 20
#: milliseconds that answers have to leave when the broker ends
_LINGER = 200


@dataclass(frozen=True, slots=True)
class AbtpSettings:
    """router, pub: endpoints; port 0 is a free one. largest: bytes of a payload. batch: messages of one
    turn.

    unkept, unkept_bytes: what may wait for the disk; beyond it producers are throttled. peer_queue,
    sub_queue: messages that may wait in the sockets for one peer. peer_bytes: bytes that may wait there for a
    peer of the ROUTER, unless one message alone is larger. peer_unread: messages of one peer that libzmq
    reads before the broker does. route_grace: seconds that a message waits for a consumer that went a moment
    ago; awaiting, awaiting_of_topic: how many of them, in all and of a topic.
    """

    router: str = ROUTER_ENDPOINT
    pub: str = PUB_ENDPOINT
    largest: int = 16 << 20
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
    """The ROUTER and the XPUB. They belong to the context.

    HEARTBEAT_IVL stays off: libzmq 4.3.5 aborts the process when the time comes to ask a peer that has closed
    while its input was stopped (RCVHWM). A peer's PING does the same: see abtp_relay.
    """
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A client that comes back with its identity is not shut out by its own dead connection.
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.SNDHWM, settings.peer_queue)
    router.setsockopt(zmq.RCVHWM, settings.peer_unread)
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.SNDHWM, settings.sub_queue)
    for socket in (router, pub):
        socket.setsockopt(zmq.MAXMSGSIZE, settings.largest + _ENVELOPE_ROOM)
        socket.setsockopt(zmq.LINGER, _LINGER)
        socket.setsockopt(zmq.BACKLOG, 4096)  # as our own listeners
    return router, pub


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Where it listens then. Raises AddressInUse, AddressError."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise _address_error(endpoint, error) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _address_error(endpoint: str, error: zmq.ZMQError) -> TransferError:
    if error.errno == zmq.EADDRINUSE:
        return AddressInUse(f"{endpoint}: {error}", hint="end who has it, or name another port")
    return AddressError(f"{endpoint}: {error}", hint="tcp://host:port of this machine")
