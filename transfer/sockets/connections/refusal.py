"""Why a side ends a connection, in a REFUSED frame: a word, and the number of the message that it refuses."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

from transfer.transports.core.wire import Control, Flag
from transfer.transports.errors import Broken, MessageRefused, ProtocolError, TransferError
from transfer.transports.handshake.hello import PLACE_TAKEN

#: reasons that concern the message that was being received
_OF_ONE_MESSAGE = frozenset({"too_large", "no_memory"})
_HINTS = {
    "too_large": "its maxmsgsize is smaller: raise it there, or send less",
    "no_memory": "it has no memory for the message: give it more, or send less",
}
#: after the reason: a zero, and the message's number
_NUMBER = struct.Struct("<BQ")


def send(stream: Any, error: ProtocolError, taken: bool) -> None:
    """Sends the reason to the peer, if the stream can still send. taken: the newest message is the reason."""
    if error.reason == "tls":  # nothing goes through it any more
        return
    number = stream.received + (not taken) if taken or error.reason in _OF_ONE_MESSAGE else 0
    word = bytes([Control.REFUSED]) + error.reason.encode("ascii", "replace") + _NUMBER.pack(0, number)
    with suppress(TransferError):
        stream.send([(Flag.CONTROL, 0, None, None, word)], force=True)
        stream.flush()


def decode(data: bytes) -> tuple[str, int]:
    """The reason, and the number of the refused message (0: none), of a REFUSED frame."""
    word, _, number = data[1:65].partition(b"\0")
    return word.decode("ascii", "replace"), int.from_bytes(number[:8], "little")


def error_of(refusal: tuple[str, int] | None) -> Broken | None:
    """What a peer's refusal means for messages that it had. None: there is none, or it was for a place."""
    if refusal is None or refusal[0] in PLACE_TAKEN or refusal[0] == "replaced":
        return None
    reason, number = refusal
    if number:
        return MessageRefused(reason, hint=_HINTS.get(reason, ""))
    return Broken(f"the peer ended the connection: {reason}")
