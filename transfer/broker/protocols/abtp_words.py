"""Constants of abtp/1: versions, codes, special topics, and JSON. Pure."""

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
#: topic that reports messages without a route, and prefix of the topics of dead letters
UNROUTABLE, DEAD_LETTERS = "_system.unroutable", "_dlq."
#: limit on the bytes of an id
MAX_ID = 255
#: limit on the bytes of a control message, of headers, and of an envelope without its payload
MAX_CONTROL = 64 << 10


class Code(StrEnum):
    """Why a request was refused: `code` in an answer of type error."""

    UNSUPPORTED_VERSION = "unsupported_version"
    MALFORMED_ENVELOPE = "malformed_envelope"
    INVALID_TOPIC = "invalid_topic"
    UNSUPPORTED_CODEC = "unsupported_codec"
    UNSUPPORTED_COMPRESSION = "unsupported_compression"
    OVERSIZED_PAYLOAD = "oversized_payload"
    POLICY_DENIED = "policy_denied"
    # added by this broker
    MALFORMED_CONTROL = "malformed_control"
    UNAUTHORIZED_CONTROL = "unauthorized_control"
    NO_ROUTE = "no_route"
    THROTTLED = "throttled"
    DROPPED = "dropped"
    UNAVAILABLE = "unavailable"


def to_json(value: Any, what: str) -> bytes:
    """Encodes a value as JSON that its readers can decode. what: its name in errors. Raises UsageError.

    NaN and Infinity are refused, too: msgspec writes null for them.
    """
    try:
        text = msgspec.json.encode(value)
        check(text)
        if b"null" in text:
            json.dumps(msgspec.to_builtins(value, str_keys=True), allow_nan=False)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} cannot be represented in JSON: {error}") from error
    return text
