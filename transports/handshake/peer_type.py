"""Detects the socket type of a peer from the first bytes of its connection. Pure.

The header of each frame names the type. With TLS the ClientHello names it, by ALPN. The result selects an
endpoint; its handshake checks the type again.
"""

from __future__ import annotations

from typing import NamedTuple

from transfer.transports.core.first_record import HEAD, LARGEST_HELLO
from transfer.transports.core.wire import HEADER, HEADER_SIZE, MAGIC, REFERENCE_BIT, SocketType, arrived_type
from transfer.transports.handshake.client_hello import offered
from transfer.transports.security.credentials import ALPN_PROTOCOL

#: bytes that are always enough: of a frame, of a ClientHello
HEADER_BYTES, CLIENT_HELLO_BYTES = HEADER_SIZE, HEAD + LARGEST_HELLO
#: the first bytes of each frame
FRAME_MAGIC = MAGIC.to_bytes(4, "little")


class Detection(NamedTuple):
    """socket_type: None if unknown. needed: bytes needed to know it; 0: more bytes do not help."""

    socket_type: SocketType | None = None
    needed: int = 0


def detect_in_header(first: bytes) -> Detection:
    """From the first bytes of a connection without TLS."""
    if not first.startswith(FRAME_MAGIC):
        return Detection(needed=HEADER_SIZE if FRAME_MAGIC.startswith(first) else 0)
    if len(first) < HEADER_SIZE:
        return Detection(needed=HEADER_SIZE)
    try:
        return Detection(arrived_type(HEADER.unpack_from(first)[2] & ~REFERENCE_BIT))
    except ValueError:
        return Detection()


def detect_in_client_hello(first: bytes) -> Detection:
    """From the first bytes of a TLS client."""
    protocols, _foreign, needed = offered(first)
    if protocols is None:
        return Detection(needed=needed)
    types = (socket_type_of(name.decode("ascii", "replace")) for name in protocols)
    return Detection(next((found for found in types if found is not None), None))


def socket_type_of(protocol: str) -> SocketType | None:
    """The socket type in an ALPN protocol name; `ALPN_PROTOCOL` alone has none."""
    name = protocol.removeprefix(f"{ALPN_PROTOCOL}/")
    found = SocketType.__members__.get(name) if name != protocol else None
    return found if found is None else found.on_wire
