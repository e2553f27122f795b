"""The compiled core. `transports/core.py` decides whether it is used; importing this needs the build."""

from transports.native.channel import TlsChannel, TlsContext
from transports.native.checksum import crc32c
from transports.native.flusher import Flusher
from transports.native.json_check import check_json
from transports.native.openssl import openssl_version
from transports.native.pool import Frame, HeldBuffer, Lease, Mapping, Pool, Region, address_of, copy_into
from transports.native.slots import Slots
from transports.native.socket import SocketBase
from transports.native.stream import Stream
from transports.native.turn import Turn

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
