"""The words of abtp/1: versions, codes, names of control messages. Pure."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from transfer.json_text import check
from transfer.transports.errors import UsageError, comes_with

with comes_with("fronts", __name__):
    import msgspec

SPEC_VERSION = "abtp/1"
#: the topic of control messages
CONTROL = b"_control"
#: where messages without a route are told, and dead letters of a topic stand
UNROUTABLE, DEAD_LETTERS = "_system.unroutable", "_dlq."
#: bytes of an id at most
MAX_ID = 255
#: bytes of a control message, of headers, and of an envelope without its payload, at most
MAX_CONTROL = 64 << 10


class Code(StrEnum):
    """Why something was refused: `code` in an answer of type error."""

    UNSUPPORTED_VERSION = "unsupported_version"
    MALFORMED_ENVELOPE = "malformed_envelope"
    INVALID_TOPIC = "invalid_topic"
    UNSUPPORTED_CODEC = "unsupported_codec"
    UNSUPPORTED_COMPRESSION = "unsupported_compression"
    OVERSIZED_PAYLOAD = "oversized_payload"
    UNAUTHORIZED_PRODUCER = "unauthorized_producer"
    POLICY_DENIED = "policy_denied"
    # ours
    MALFORMED_CONTROL = "malformed_control"
    UNAUTHORIZED_CONTROL = "unauthorized_control"
    NO_ROUTE = "no_route"
    THROTTLED = "throttled"
    DROPPED = "dropped"
    UNAVAILABLE = "unavailable"


def to_json(value: Any, what: str) -> bytes:
    """What a program wants to send, as JSON that its readers can decode. what: its name for the error.

    msgspec writes null for NaN and Infinity: they are refused too. Raises UsageError.
    """
    try:
        text = msgspec.json.encode(value)
        check(text)
        if b"null" in text:
            json.dumps(msgspec.to_builtins(value, str_keys=True), allow_nan=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} is nothing that JSON can hold: {error}") from error
    return text
