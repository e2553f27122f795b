"""The bytes of an object: magic, codes of the extensions, limits.

    u8[3] magic      c1 54 4f; pickles begin with 80, and msgpack never uses c1
    u8    version    1: msgpack follows, to the end
                     2: u64 length of the msgpack, msgpack, zeros up to a multiple of 64, then the buffers,
                     each padded with zeros to a multiple of 64
    msgpack          one value

Values of msgpack are those of Python: nil, booleans, integers of 64 bits, floats, text, bytes, lists, and
dicts whose keys are text. All else is an extension of a code below. The buffers belong to the extensions
BUFFER and TENSOR, in the order of the msgpack: no offset is sent, so none can be wrong, and no byte is used
twice.
"""

from __future__ import annotations

import struct
from typing import Final

from transfer.transports.errors import ProtocolError

MAGIC: Final = b"\xc1TO"
ALONE: Final = MAGIC + b"\x01"
WITH_BUFFERS: Final = MAGIC + b"\x02"
#: after the magic of a message with buffers: bytes of the msgpack
LENGTH: Final = struct.Struct("<Q")
ALIGNMENT: Final = 64
PADDING: Final = bytes(ALIGNMENT)

#: containers and objects in each other. The interpreter's own limit of recursion allows some hundreds.
MAX_DEPTH: Final = 100
#: shorter bytes stay in the msgpack
INLINE: Final = 4096

INT: Final = 1  # little-endian two's complement, for those beyond 64 bits
COMPLEX: Final = 2  # two doubles, little-endian
BYTEARRAY: Final = 3
TUPLE: Final = 4  # msgpack of a list, as of the following five
SET: Final = 5
FROZENSET: Final = 6
DICT: Final = 7  # key, value, key, value ...: with any keys
DATETIME: Final = 8  # year, month, day, hour, minute, second, microsecond, fold, time zone or nil
TIME: Final = 9  # hour, minute, second, microsecond, fold, time zone or nil
DATE: Final = 10  # year, month, day
TIMEDELTA: Final = 11  # days, seconds, microseconds
TIMEZONE: Final = 12  # timedelta, and a name if it has one
ZONE: Final = 13  # key of a zoneinfo.ZoneInfo
DECIMAL: Final = 14  # text
UUID: Final = 15  # 16 bytes, and what `is_safe` says
BUFFER: Final = 16  # long bytes: BUFFER_HEAD
TENSOR: Final = 17  # u8 kind (`tensor.py`), tensor header of docs/wire.md
CLASS: Final = 18  # module, qualified name: a class of the allow list
OBJECT: Final = 19  # module, qualified name, and the parts of `reduced.py`
RANGE: Final = 20  # start, stop, step
SLICE: Final = 21  # the same

#: u8 1 for a bytearray, u64 length
BUFFER_HEAD: Final = struct.Struct("<BQ")
PAIR: Final = struct.Struct("<dd")

#: characters that an error shows of what a peer chose
_SHOWN: Final = 200


def malformed(why: str) -> ProtocolError:
    """The error for bytes that are no object."""
    return ProtocolError(
        "object", why, hint="the connection goes on; the sender has to call send_pyobj of this package"
    )


def quoted(text: str) -> str:
    """A peer's text for an error: without line breaks, and cut off."""
    return f"{text[:_SHOWN]!r:.{_SHOWN}}"


def caused(error: BaseException) -> str:
    """What an error says, for another one: its text may be a peer's, and may itself raise."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it shows a value whose class raises
        return type(error).__name__
    return f"{type(error).__name__}({quoted(text)})"
