"""The core in Python: the reference that the compiled one is judged by, and the fallback.

Same classes, same contract (`transports/core_contract.pyi`), same tests (`tests/core`).
"""

from transports.twin.checksum import crc32c
from transports.twin.flusher import Flusher
from transports.twin.frame import Frame
from transports.twin.json_check import check_json
from transports.twin.pool import HeldBuffer, Lease, Mapping, Pool, Region, address_of, copy_into
from transports.twin.slots import Slots
from transports.twin.socket import SocketBase
from transports.twin.stream import Stream
from transports.twin.tls import TlsChannel, TlsContext, openssl_version
from transports.twin.turn import Turn

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
