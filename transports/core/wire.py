"""The layout of a frame: constants only.

Everything is little-endian and packed. `docs/wire.md` is the specification.

    header (34) | tensor header (48, or extended) | topic | data
"""

from __future__ import annotations

import struct
from enum import Enum, IntEnum, IntFlag

MAGIC = 0x5A4D5121
VERSION = 1

#: magic, version, socket type, flags, sequence id, topic length, data length, checksum
HEADER = struct.Struct("<IIBBQIQI")
HEADER_SIZE = HEADER.size
#: dtype, number of dimensions, shape[4], layout (0 row-major, 1 column-major), padding
TENSOR_HEADER = struct.Struct("<II4qB7x")
TENSOR_HEADER_SIZE = TENSOR_HEADER.size
#: an extended tensor header begins with its own length in bytes, these four included
EXTENDED_LENGTH = struct.Struct("<I")
EXTENDED_MIN = 16
EXTENDED_MAX = 4096
#: data of a credit: Control.CREDIT, the total of messages consumed on this connection
CREDIT = struct.Struct("<BQ")
MAX_TOPIC = 64 * 1024
MAX_CONTROL = 64 * 1024
#: the most frames of one message: each costs its receiver more than its bytes
MAX_FRAMES = 1 << 17
#: default limit for the data of one message, in bytes
MAX_DATA = 16 << 30
#: stands for data that travels apart from the connection: segment, way, offset, length in bytes
REFERENCE = struct.Struct("<IIQQ")
REFERENCE_SIZE = REFERENCE.size
#: the lowest byte of the second number, of a payload in memory of a GPU
ON_GPU = 3
#: in the flags of an OutFrame: its data is such a reference. On the wire it is this bit of the socket type,
#: since the flag byte is full; only streams whose peers agreed on it send or accept it.
BY_REFERENCE = 0x100
REFERENCE_BIT = 0x80

assert HEADER_SIZE == 34 and TENSOR_HEADER_SIZE == 48


class TypeNumber(IntEnum):
    """A socket type, equal to its number. A type of another enumeration, with other numbers, is equal only if
    it has the same name too."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Enum) and other.name != self.name:
            return False
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


class SocketType(TypeNumber):
    """Values 0 to 6 are the original ones; this project adds 7 and 8. XPUB and XSUB never travel: to their
    peers, older ones too, they are PUB and SUB."""

    REQ = 0
    REP = 1
    PUB = 2
    SUB = 3
    PUSH = 4
    PULL = 5
    PAIR = 6
    DEALER = 7
    ROUTER = 8
    XPUB = 9
    XSUB = 10

    @property
    def on_wire(self) -> SocketType:
        """The type in this socket's hellos and frames."""
        return _ON_WIRE.get(self, self)


_ON_WIRE = {SocketType.XPUB: SocketType.PUB, SocketType.XSUB: SocketType.SUB}
#: the types that may arrive, and the last of them
TYPES_ON_WIRE = [kind for kind in SocketType if kind.on_wire is kind]
LAST_TYPE = max(TYPES_ON_WIRE)


def arrived_type(number: int) -> SocketType:
    """The socket type of a number that arrived. Raises ValueError."""
    if number > LAST_TYPE:
        raise ValueError(f"{number} is no socket type of the wire")
    return SocketType(number)


class Flag(IntFlag):
    """Bits of the header's flag byte. Bits 3 to 7 never go to a peer that sent no hello."""

    TENSOR = 1
    TOPIC = 2
    ACK = 4
    CONTROL = 8
    MORE = 16
    CRC = 32
    EXTENDED = 64
    LZ4 = 128


def fits(flags: int, meta: bytes | None) -> bool:
    """Whether a frame may have these flags and this tensor header; the receiver refuses others."""
    if not 0 <= flags <= 0xFF or (meta is not None) != bool(flags & Flag.TENSOR):
        return False
    if not flags & Flag.EXTENDED:
        return meta is None or len(meta) == TENSOR_HEADER_SIZE
    if meta is None or not EXTENDED_MIN <= len(meta) <= EXTENDED_MAX:
        return False
    return bool(EXTENDED_LENGTH.unpack_from(meta)[0] == len(meta))


class Control(IntEnum):
    """First byte of a control frame's data."""

    HELLO = 1
    SUBSCRIBE = 2
    UNSUBSCRIBE = 3
    SUBSCRIBED = 4
    CREDIT = 5
    HEARTBEAT = 6
    REFUSED = 7
    GOODBYE = 8
    ATTACH = 9
    UPGRADE = 10
    PROOF = 12  # of the token, see handshake/proving.py
    POSITION = 13
    RESUBSCRIBE = 14
    OFFLINE = 15
    SKIPPED = 16
    WITHHELD = 17
    CREDENTIALS = 18  # of a mechanism, see handshake/authentication.py
    APPROVED = 19
