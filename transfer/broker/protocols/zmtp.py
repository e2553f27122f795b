"""The handshake of ZeroMQ's wire format (ZMTP 3.x, mechanism NULL). Pure.

A greeting of 64 bytes, then READY with the peer's properties. Numbers are big-endian.
"""

from __future__ import annotations

from transfer.transports.errors import ProtocolError

GREETING = 64
#: limit on the bytes of READY: an identity has at most 255, the type of a socket few
LONGEST_READY = 4096
LONGEST_IDENTITY = 255
IDENTITY = b"Identity"

_MECHANISM = b"NULL".ljust(20, b"\0")
_NAME = b"\x05READY"
#: flags of a command frame, with a size of one byte, or of eight
_SHORT, _LONG = 4, 6
#: limit on the bytes of a SUB's frame
_LONGEST_SUBSCRIPTION = 64 << 10
#: first bytes of a message, and of a command, that subscribes (True) or unsubscribes
_SUBSCRIBING = (
    ((b"\x01", True), (b"\x00", False)),
    ((b"\x09SUBSCRIBE", True), (b"\x06CANCEL", False)),
)


def check_greeting(begin: bytes) -> None:
    """Checks as much of a greeting as is there. Raises ProtocolError."""
    signed = begin[0] == 0xFF and (len(begin) < 10 or begin[9] & 1)
    if not signed or (len(begin) > 10 and begin[10] < 3):
        raise ProtocolError("version", "not a greeting of ZMTP 3, which ZeroMQ uses since 4.0")
    mechanism = begin[12:32]
    if mechanism != _MECHANISM[: len(mechanism)]:
        raise ProtocolError("version", "a mechanism other than NULL")


def read_ready(data: memoryview) -> tuple[int, dict[bytes, bytes]] | None:
    """Returns the size of the frame at the beginning of `data`, and its properties; None: more bytes are
    needed. Raises ProtocolError."""
    if not data:
        return None
    if data[0] not in (_SHORT, _LONG):
        raise ProtocolError("flags", "a frame other than READY after the greeting")
    head = 2 if data[0] == _SHORT else 9
    if len(data) < head:
        return None
    size = head + int.from_bytes(data[1:head], "big")
    if size > LONGEST_READY:
        raise ProtocolError("length", f"READY has more than {LONGEST_READY} bytes")
    if len(data) < size:
        return None
    return size, _properties(bytes(data[head:size]))


def write_ready(properties: dict[bytes, bytes]) -> bytes:
    """Encodes READY with these properties."""
    body = _NAME + b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in properties.items()
    )
    head = bytes([_SHORT, len(body)]) if len(body) < 256 else bytes([_LONG]) + len(body).to_bytes(8, "big")
    return head + body


def frame_size(frame: bytes) -> int:
    """Returns the bytes of a frame on a connection, with its head."""
    return len(frame) + (2 if len(frame) < 256 else 9)


def _properties(body: bytes) -> dict[bytes, bytes]:
    if not body.startswith(_NAME):
        raise ProtocolError("control", "a command other than READY after the greeting")
    found: dict[bytes, bytes] = {}
    at = len(_NAME)
    while at < len(body):
        name_end = at + 1 + body[at]
        begin = name_end + 4
        end = begin + int.from_bytes(body[name_end:begin], "big")
        name = body[at + 1 : name_end]
        if begin > len(body) or end > len(body) or name in found:
            raise ProtocolError("control", "READY has a property that is cut off or repeated")
        found[name] = body[begin:end]
        at = end
    identity = found.get(IDENTITY, b"")
    if len(identity) > LONGEST_IDENTITY or identity.startswith(b"\0"):
        raise ProtocolError(
            "control", f"an identity of more than {LONGEST_IDENTITY} bytes, or that begins with zero"
        )
    return found


class SubscriptionReader:
    """Parses what a SUB sends after READY, in pieces of any size, into subscribes and unsubscribes: messages
    of one byte and a prefix (ZMTP 3.0), or commands (3.1). It skips everything else."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: memoryview) -> list[tuple[bool, bytes]]:
        """Returns (whether it subscribes, the prefix) of each. Raises ProtocolError for a frame that no SUB
        sends."""
        came = self._rest + data if self._rest else bytes(data)
        found, at = [], 0
        while len(came) - at >= 2:
            flags = came[at]
            begin = at + (9 if flags & 2 else 2)
            if len(came) < begin:
                break
            end = begin + int.from_bytes(came[at + 1 : begin], "big")
            if end - begin > _LONGEST_SUBSCRIPTION:
                most = f"the limit for a SUB is {_LONGEST_SUBSCRIPTION}"
                raise ProtocolError("length", f"a frame of {end - begin} bytes: {most}")
            if len(came) < end:
                break
            for head, subscribes in _SUBSCRIBING[bool(flags & _SHORT)]:
                if came.startswith(head, begin, end):
                    found.append((subscribes, came[begin + len(head) : end]))
            at = end
        self._rest = came[at:]
        return found
