"""Of which socket type a peer is, by the first bytes of its connection. Pure.

The header of each of our frames names it; with TLS the ClientHello does, by ALPN. Nothing here is believed:
the handshake decides, of whoever gets the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from transports.client_hello import offered
from transports.first_record import HEAD, LARGEST_HELLO
from transports.wire import HEADER, HEADER_SIZE, MAGIC, SocketType

#: bytes that are enough to tell, and to tell with TLS
ENOUGH, ENOUGH_SECURED = HEADER_SIZE, HEAD + LARGEST_HELLO
#: what own sockets say by ALPN, and "/" and their type behind it
OWN_PROTOCOL = "transfer/1"
#: what every frame of ours begins with
MARK = MAGIC.to_bytes(4, "little")


class Told(NamedTuple):
    """socket_type: None as long as it is not known. wanted: how many bytes are needed to know it."""

    socket_type: SocketType | None = None
    wanted: int = 0


def told_by_header(first: bytes) -> Told:
    """What the first bytes of a frame tell. Bytes that are none tell nothing."""
    if not first.startswith(MARK):
        return Told(wanted=HEADER_SIZE if MARK.startswith(first) else 0)
    if len(first) < HEADER_SIZE:
        return Told(wanted=HEADER_SIZE)
    try:
        return Told(SocketType(HEADER.unpack_from(first)[2] & 0x7F))
    except ValueError:
        return Told()


def told_by_client_hello(first: bytes) -> Told:
    """The same where all speak TLS."""
    protocols, _foreign, wanted = offered(first)
    if protocols is None:
        return Told(wanted=wanted)
    found = (told_by_protocol(name.decode("ascii", "replace")) for name in protocols)
    return Told(next((kind for kind in found if kind is not None), None))


def told_by_protocol(name: str) -> SocketType | None:
    """What a protocol of ALPN tells: `OWN_PROTOCOL` alone says no type."""
    kind = name.removeprefix(f"{OWN_PROTOCOL}/")
    return SocketType[kind] if kind != name and kind in SocketType.__members__ else None
