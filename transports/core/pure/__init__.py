"""The core in Python: the reference for the compiled one, and its replacement where it is missing.

Same classes, same contract (`transports/core/contract.pyi`), same tests (`tests/core`).
"""

from transfer.transports.core.pure.checksum import crc32c
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.frame import Frame
from transfer.transports.core.pure.json_check import check_json
from transfer.transports.core.pure.pool import HeldBuffer, Lease, Mapping, Pool, Region, address_of, copy_into
from transfer.transports.core.pure.slots import Slots
from transfer.transports.core.pure.socket import SocketBase
from transfer.transports.core.pure.stream import Stream
from transfer.transports.core.pure.turn import Turn
from transfer.transports.core.python_tls import TlsChannel, TlsContext, openssl_version

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
