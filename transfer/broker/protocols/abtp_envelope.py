"""Envelopes of abtp/1: reads a producer's frames, and writes what a consumer receives. Pure.

An envelope is a JSON object. The broker takes out the payload's bytes, and later puts them back without
decoding them: numbers, escapes and white space in them stay as the producer wrote them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transfer import json_text
from transfer.broker.core.priority_queue import class_of
from transfer.broker.core.topic_patterns import Kind, check_topic
from transfer.broker.protocols import abtp_lz4
from transfer.broker.protocols.abtp_media import codec as known_codec, compressor, decompress_payload
from transfer.broker.protocols.abtp_words import MAX_CONTROL, MAX_ID, SPEC_VERSION, Code
from transfer.transports.errors import ProtocolError, UsageError, comes_with

with comes_with("fronts", __name__):
    import msgspec

#: fields that the broker writes for each delivery; `auth` is for the broker only
_LEFT_OUT = frozenset({"payload", "attempt", "delivery_id", "session_id", "auth"})
#: fields that a producer of bare payloads may set among its headers; they are not headers then
_LIFTED = ("message_id", "producer_id", "timestamp_unix_ms", "correlation_id", "reply_to", "partition_key")
_LIFTED_TOO = ("deadline_unix_ms", "auth", "spec_version")
_TEXTS = ("correlation_id", "reply_to", "partition_key", "trace_id")
_MODES = ("direct", "fanout", "bridge")
_MOST_MS = 1 << 62
#: limits on the size of decompressed JSON, absolute and as a ratio, which LZ4 cannot exceed anyway: parsing
#: takes far longer than decompressing, and the CPU is shared
_SMALL_JSON, _MOST_OF_JSON = 64 << 10, 255
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Outline(msgspec.Struct):
    """The fields that are read first: a dict of a million fields takes the interpreter a second."""

    spec_version: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


_outline = msgspec.json.Decoder(_Outline)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A producer's checked message.

    head: the envelope as JSON, without payload. payload: JSON's text if codec is "json", else the plain bytes
    (in an envelope they are base64). headers: known and unknown ones, as they came, except `compression`,
    which is undone. auth: the producer's credentials; they are not in the head.
    """

    message_id: str
    producer_id: str
    topic: str
    timestamp_unix_ms: int
    head: bytes
    payload: bytes
    codec: str
    headers: Mapping[str, Any]
    tenant: str = ""
    delivery_mode: str = ""
    expires_ms: int = 0
    due_ms: int = 0
    auth: Any = None

    @property
    def priority(self) -> str:
        """The class of priority in the headers."""
        return class_of(self.headers.get("priority"))


def write_envelope(head: bytes, payload: bytes, codec: str, **more: str | int) -> bytes:
    """Writes an envelope with its payload and the fields of this delivery. head: a JSON object."""
    text = payload if codec == "json" else b'"' + base64.b64encode(payload) + b'"'
    parts = [head[:-1], b',"payload":', text]
    for name, value in more.items():
        parts += (b',"', name.encode(), b'":', json.dumps(value).encode())
    parts.append(b"}")
    return b"".join(parts)


def make_head(
    message_id: str, producer_id: str, topic: str, timestamp_unix_ms: int, headers: Mapping[str, Any]
) -> bytes:
    """Makes the head of an envelope for a message that came without one."""
    fields: dict[str, Any] = {
        "spec_version": SPEC_VERSION,
        "message_id": message_id,
        "producer_id": producer_id,
        "topic": topic,
        "timestamp_unix_ms": timestamp_unix_ms,
    }
    if headers:
        fields["headers"] = dict(headers)
    return msgspec.json.encode(fields)


def with_header(head: bytes, name: str, value: str) -> bytes:
    """Adds a header to the head of an envelope; the rest stays as the producer wrote it."""
    fields = _fields.decode(head)
    headers = _fields.decode(fields["headers"]) if "headers" in fields else {}
    headers[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode({**fields, "headers": msgspec.Raw(msgspec.json.encode(headers))})


# --- messages of producers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Values for the fields that the producer did not set. topic: the frame in front of the payload. now_ms:
    the time. limit: bytes of a payload."""

    topic: str
    producer_id: str
    message_id: str
    now_ms: int
    limit: int


def read_old(data: bytes, origin: Origin) -> Envelope:
    """Reads the payload frame of an old producer, without type: JSON, LZ4 of JSON, or bytes. Raises
    ProtocolError."""
    _check_size(data, origin.limit)
    text = _as_json(data)
    if text is None and data.startswith(abtp_lz4.FRAME_MAGIC):
        data = abtp_lz4.decompress(data, origin.limit)
        text = _as_json(data)
    elif text is None:
        text = _block_of_json(data, origin.limit)
    if text is None:
        return _bare(data, {}, "raw", origin)
    return _whole_or_bare(text, {}, origin)


def read_new(headers_frame: bytes, data: bytes, origin: Origin) -> Envelope:
    """Reads headers and payload of a new producer. Raises ProtocolError."""
    _check_size(data, origin.limit)
    headers = _read_headers(headers_frame)
    codec = _codec(headers)
    packer = compressor(headers.get("compression") or "none")
    if packer is not None:
        most = max(_SMALL_JSON, _MOST_OF_JSON * len(data)) if codec == "json" else origin.limit
        data = decompress_payload(packer, data, min(origin.limit, most))
    if codec != "json":
        _check_payload(codec, data)
        return _bare(data, headers, codec, origin)
    text = _as_json(data)
    if text is None:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, "the payload is not JSON: set codec to raw for other bytes"
        )
    return _whole_or_bare(text, headers, origin)


def may_be_compressed(headers_frame: bytes, data: bytes) -> bool:
    """Returns quickly whether `read_old` (without headers) or `read_new` may decompress the payload."""
    if headers_frame:
        return b"compression" in headers_frame or b"\\" in headers_frame  # the name may be escaped
    return data[:1] not in (b"{", b"[", b'"')


def _whole_or_bare(text: bytes, headers: dict[str, Any], origin: Origin) -> Envelope:
    """Reads JSON: an object with `spec_version` is an envelope, other JSON is a payload alone."""
    if text.startswith(b"{") and b'"spec_version"' in text:
        outline = _outline.decode(text)
        if len(outline.spec_version):
            if len(text) - len(outline.payload) > MAX_CONTROL:
                what = f"an envelope of more than {MAX_CONTROL:,} bytes without its payload"
                raise ProtocolError(Code.MALFORMED_ENVELOPE, what)
            return _whole(_fields.decode(text), headers, origin)
    return _bare(text, headers, "json", origin)


def _whole(fields: dict[str, msgspec.Raw], frame_headers: dict[str, Any], origin: Origin) -> Envelope:
    _check_version(_value(fields, "spec_version"))
    for name in ("message_id", "producer_id", "topic", "payload", "timestamp_unix_ms"):
        if name not in fields:
            raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name} is missing")
    values = {name: _value(fields, name) for name in fields if name not in ("payload", "headers")}
    if values["topic"] != origin.topic:
        text = f"the envelope has topic {values['topic']!r:.80}, its frame {origin.topic!r:.80}"
        raise ProtocolError(Code.INVALID_TOPIC, text)
    own = _value(fields, "headers") if "headers" in fields else None
    if own is not None and not isinstance(own, dict):
        raise ProtocolError(Code.MALFORMED_ENVELOPE, "headers is not an object")
    headers = {**frame_headers, **(own or {})}
    compressed = headers.pop("compression", None)
    if compressed is not None:
        compressor(compressed)
    codec = _codec(headers)
    payload = bytes(fields["payload"])
    if codec != "json":
        payload = _base64(payload, origin.limit)
        _check_payload(codec, payload)
    if own != headers:
        fields["headers"] = msgspec.Raw(msgspec.json.encode(headers))
    head = msgspec.json.encode({name: value for name, value in fields.items() if name not in _LEFT_OUT})
    return _envelope(values, headers, head, payload, codec)


def _bare(data: bytes, headers: dict[str, Any], codec: str, origin: Origin) -> Envelope:
    """Makes the envelope of a payload alone, with the fields among its headers."""
    headers = dict(headers)
    headers.pop("compression", None)
    values: dict[str, Any] = {
        "spec_version": SPEC_VERSION,
        "message_id": origin.message_id,
        "producer_id": origin.producer_id,
        "topic": origin.topic,
        "timestamp_unix_ms": origin.now_ms,
    }
    for name in (*_LIFTED, *_LIFTED_TOO):
        if name in headers:
            values[name] = headers.pop(name)
    _check_version(values["spec_version"])
    if codec != "json":
        headers["codec"] = codec
    fields = {name: value for name, value in values.items() if name not in _LEFT_OUT}
    if headers:
        fields["headers"] = headers
    return _envelope(values, headers, msgspec.json.encode(fields), data, codec)


def _envelope(
    values: Mapping[str, Any], headers: Mapping[str, Any], head: bytes, payload: bytes, codec: str
) -> Envelope:
    """Checks every field that the broker knows."""
    message_id, producer_id = (_id(values, name) for name in ("message_id", "producer_id"))
    for name in _TEXTS:
        if not isinstance(values.get(name), str | None):
            raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name} is not text")
    timestamp = _milliseconds(values, "timestamp_unix_ms")
    mode = values.get("delivery_mode") or headers.get("delivery_mode") or ""
    if mode and mode not in _MODES:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"delivery_mode {mode!r:.80} is not one of {_MODES}")
    tenant = headers.get("tenant_id") or ""
    if not isinstance(tenant, str) or len(tenant.encode()) > MAX_ID or "/" in tenant or "\0" in tenant:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"tenant_id {tenant!r:.80} is not a valid name")
    deadline = _milliseconds(values, "deadline_unix_ms")
    ttl = _milliseconds(headers, "ttl_ms")
    ends = [end for end in (deadline, timestamp + ttl if "ttl_ms" in headers else 0) if end]
    due = _milliseconds(headers, "deliver_at_unix_ms")
    if not due and (delay := _milliseconds(headers, "delay_ms")):
        due = timestamp + delay
    return Envelope(
        message_id, producer_id, values["topic"], timestamp, head, payload, codec, headers, tenant, mode,
        min(ends, default=0), due, values.get("auth"),
    )  # fmt: skip


# --- fields of an envelope --------------------------------------------------------------------------------


def check_name(topic: bytes) -> str:
    """Returns the topic that a frame names. Raises ProtocolError."""
    try:
        name = str(topic, "utf-8")
        check_topic(name, Kind.DOTS)
    except (UnicodeDecodeError, UsageError) as error:
        raise ProtocolError(Code.INVALID_TOPIC, f"{topic!r:.80}: {error}") from error
    return name


def _check_version(version: object) -> None:
    if version != SPEC_VERSION:
        raise ProtocolError(Code.UNSUPPORTED_VERSION, f"{version!r:.40}; this broker speaks {SPEC_VERSION}")


def _check_size(data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise ProtocolError(Code.OVERSIZED_PAYLOAD, f"{len(data):,} bytes exceed the limit of {limit:,}")


def is_json(data: bytes) -> bool:
    """Returns whether these bytes are a JSON text that all readers can decode."""
    try:
        return _as_json(data) is not None
    except ProtocolError:
        return False


def _as_json(data: bytes) -> bytes | None:
    """Returns the JSON text without surrounding white space; None if it is not JSON. Raises ProtocolError for
    JSON that readers cannot decode."""
    try:
        text = bytes(msgspec.json.decode(data, type=msgspec.Raw))
        str(text, "utf-8")  # the decoder does not check strings
        json_text.check(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"JSON that readers cannot decode: {error}") from error
    return text


def _block_of_json(data: bytes, limit: int) -> bytes | None:
    """Returns the JSON in an LZ4 block, or None: arbitrary bytes may be a valid block."""
    try:
        text = abtp_lz4.decompress(data, limit)
    except ProtocolError as error:
        if error.reason == Code.OVERSIZED_PAYLOAD:
            raise
        return None
    return _as_json(text)


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    try:
        return msgspec.json.decode(fields[name])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name}: {error}") from error


def _read_headers(frame: bytes) -> dict[str, Any]:
    if not frame:
        return {}
    try:
        json_text.check(frame)
        return msgspec.json.decode(frame, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"the headers: {error}") from error


def _codec(headers: Mapping[str, Any]) -> str:
    codec = headers.get("codec", "json")
    known_codec(codec)
    return str(codec)


def _check_payload(codec: str, data: bytes) -> None:
    try:
        known_codec(codec).check(data)
    except Exception as error:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, f"the payload is not valid {codec}: {error!r:.200}"
        ) from error


def _base64(text: bytes, limit: int) -> bytes:
    try:
        data = base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, f"a payload that is not JSON must be base64: {error}"
        ) from error
    _check_size(data, limit)
    return data


def _id(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not 0 < len(value.encode(errors="replace")) <= MAX_ID:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, f"{name} {value!r:.80} is not text of 1 to {MAX_ID} bytes"
        )
    return value


def _milliseconds(values: Mapping[str, Any], name: str) -> int:
    """Returns a number of milliseconds; 0 if the field is missing."""
    value = values.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_MS:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name} {value!r:.80} is not a number of milliseconds")
    return value
