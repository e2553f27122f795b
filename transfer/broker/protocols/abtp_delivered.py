"""Messages that consumers and subscribers of abtp/1 receive. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transfer.broker.protocols.abtp_media import codecs, compressor_of, decompress_payload
from transfer.broker.protocols.abtp_words import Code
from transfer.transports.errors import ProtocolError, comes_with

with comes_with("fronts", __name__):
    import msgspec


@dataclass(frozen=True, slots=True)
class AbtpDelivered:
    """A received message. payload: decoded by its codec; bytes if the codec is raw, unknown, or fails: fault
    has the reason then.

    attempt, delivery_id, session_id: of a direct delivery, for its ACK; 0 and "" on the PUB socket. fields:
    the whole envelope except the payload.
    """

    topic: str
    payload: Any
    message_id: str
    producer_id: str
    headers: Mapping[str, Any]
    attempt: int
    delivery_id: str
    session_id: str
    fields: Mapping[str, Any]
    fault: str = ""


class _Envelope(msgspec.Struct):
    topic: str
    message_id: str
    producer_id: str
    payload: Any
    headers: dict[str, Any] = {}
    attempt: int = 0
    delivery_id: str = ""
    session_id: str = ""


def read_delivered(data: bytes, limit: int) -> AbtpDelivered:
    """Reads the message in an envelope, compressed or not. limit: bytes, decompressed. Raises ProtocolError
    if it is not an envelope."""
    packer = compressor_of(data)
    if packer is not None:
        data = decompress_payload(packer, data, limit)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        known = msgspec.convert(fields, _Envelope)
        payload = fields.pop("payload")
        codec = known.headers.get("codec", "json")
        if codec != "json":
            payload = base64.b64decode(payload, validate=True)
    except (msgspec.DecodeError, RecursionError, binascii.Error, ValueError, TypeError) as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, str(error)) from error
    fault = ""
    if codec != "json" and codec in codecs():
        try:
            payload = codecs()[codec].decode(payload)
        except Exception as error:  # noqa: BLE001 - a codec of another distribution may raise anything
            fault = f"the payload is not valid {codec}: {error!r:.200}"
    return AbtpDelivered(
        known.topic,
        payload,
        known.message_id,
        known.producer_id,
        known.headers,
        known.attempt,
        known.delivery_id,
        known.session_id,
        fields,
        fault,
    )
