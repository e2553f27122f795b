"""The compiled core. `transports/core` decides whether it is used; importing it needs the build."""

from transfer.transports.core.native.checksum import crc32c
from transfer.transports.core.native.flusher import Flusher
from transfer.transports.core.native.json_check import check_json
from transfer.transports.core.native.openssl import openssl_version
from transfer.transports.core.native.pool import (
    Frame,
    HeldBuffer,
    Lease,
    Mapping,
    Pool,
    Region,
    address_of,
    copy_into,
)
from transfer.transports.core.native.slots import Slots
from transfer.transports.core.native.socket import SocketBase
from transfer.transports.core.native.stream import Stream
from transfer.transports.core.native.tls_channel import TlsChannel, TlsContext
from transfer.transports.core.native.turn import Turn

__all__ = [
    "Flusher",
    "Frame",
    "HeldBuffer",
    "Lease",
    "Mapping",
    "Pool",
    "Region",
    "Slots",
    "SocketBase",
    "Stream",
    "TlsChannel",
    "TlsContext",
    "Turn",
    "address_of",
    "check_json",
    "copy_into",
    "crc32c",
    "openssl_version",
]
