"""Envelopes of abtp/1: what a producer's frames mean, and what a consumer is sent. Pure.

An envelope is a JSON object. The broker takes the payload out of it as the bytes that it is, and later
puts it back without decoding it: numbers, escapes and white space within stay as the producer wrote them.
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

#: fields that the broker writes anew for each delivery; `auth` is for the broker, and for nobody behind it
_LEFT_OUT = frozenset({"payload", "attempt", "delivery_id", "session_id", "auth"})
#: fields that a producer of bare payloads may say among its headers; they are not headers then
_LIFTED = ("message_id", "producer_id", "timestamp_unix_ms", "correlation_id", "reply_to", "partition_key")
_LIFTED_TOO = ("deadline_unix_ms", "auth", "spec_version")
_TEXTS = ("correlation_id", "reply_to", "partition_key", "trace_id")
_MODES = ("direct", "fanout", "bridge")
_MOST_MS = 1 << 62
#: compressed JSON becomes so many bytes at most, or so many times as many: to look through it takes far
#: longer than to unpack it, and the processor's time is everybody's. LZ4 has this ratio by itself
_SMALL_JSON, _MOST_OF_JSON = 64 << 10, 255
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Outline(msgspec.Struct):
    """What is looked at first: a dict of a million fields takes the interpreter a second."""

    spec_version: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


_outline = msgspec.json.Decoder(_Outline)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A producer's message, looked through.

    head: the envelope as JSON, without payload. payload: JSON's text if codec is "json", else the bytes
    that are meant (in an envelope they are base64). headers: known and unknown ones, as they came
    but for `compression`, which is undone. auth: what the producer said to prove who it is; it is not in
    the head.
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
        """The class of priority that the headers mean."""
        return class_of(self.headers.get("priority"))


def write_envelope(head: bytes, payload: bytes, codec: str, **more: str | int) -> bytes:
    """The envelope with its payload, and what the broker says of this delivery. head: a JSON object."""
    text = payload if codec == "json" else b'"' + base64.b64encode(payload) + b'"'
    parts = [head[:-1], b',"payload":', text]
    for name, value in more.items():
        parts += (b',"', name.encode(), b'":', json.dumps(value).encode())
    parts.append(b"}")
    return b"".join(parts)


def make_head(
    message_id: str, producer_id: str, topic: str, timestamp_unix_ms: int, headers: Mapping[str, Any]
) -> bytes:
    """The head of an envelope for a message that came without one."""
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
    """The head of an envelope with one header more; all else in it stays as the producer wrote it."""
    fields = _fields.decode(head)
    headers = _fields.decode(fields["headers"]) if "headers" in fields else {}
    headers[name] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode({**fields, "headers": msgspec.Raw(msgspec.json.encode(headers))})


# --- what a producer sends --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """What the broker knows of a message beside its bytes, and says where the producer did not.

    topic: the frame in front of the payload. now_ms: the time. limit: bytes of a payload at most.
    """

    topic: str
    producer_id: str
    message_id: str
    now_ms: int
    limit: int


def read_old(data: bytes, origin: Origin) -> Envelope:
    """The payload frame of an old producer, which says nothing of itself: JSON, LZ4 of JSON, or bytes.

    Raises ProtocolError.
    """
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
    """Headers and payload of a new producer. Raises ProtocolError."""
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
        raise ProtocolError(Code.MALFORMED_ENVELOPE, "the payload is no JSON: say codec raw for other bytes")
    return _whole_or_bare(text, headers, origin)


def may_be_compressed(headers_frame: bytes, data: bytes) -> bool:
    """Whether `read_old` (its headers are empty) or `read_new` may decompress it, by a look."""
    if headers_frame:
        return b"compression" in headers_frame or b"\\" in headers_frame  # the name may be escaped
    return data[:1] not in (b"{", b"[", b'"')


def _whole_or_bare(text: bytes, headers: dict[str, Any], origin: Origin) -> Envelope:
    """An object with `spec_version` is an envelope; any other JSON is a payload alone."""
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
    said = {name: _value(fields, name) for name in fields if name not in ("payload", "headers")}
    if said["topic"] != origin.topic:
        text = f"the envelope is of topic {said['topic']!r:.80}, its frame of {origin.topic!r:.80}"
        raise ProtocolError(Code.INVALID_TOPIC, text)
    own = _value(fields, "headers") if "headers" in fields else None
    if own is not None and not isinstance(own, dict):
        raise ProtocolError(Code.MALFORMED_ENVELOPE, "headers is no object")
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
    return _envelope(said, headers, head, payload, codec)


def _bare(data: bytes, headers: dict[str, Any], codec: str, origin: Origin) -> Envelope:
    """A payload alone: the broker writes the envelope, with what the headers say of it."""
    headers = dict(headers)
    headers.pop("compression", None)
    said: dict[str, Any] = {
        "spec_version": SPEC_VERSION,
        "message_id": origin.message_id,
        "producer_id": origin.producer_id,
        "topic": origin.topic,
        "timestamp_unix_ms": origin.now_ms,
    }
    for name in (*_LIFTED, *_LIFTED_TOO):
        if name in headers:
            said[name] = headers.pop(name)
    _check_version(said["spec_version"])
    if codec != "json":
        headers["codec"] = codec
    fields = {name: value for name, value in said.items() if name not in _LEFT_OUT}
    if headers:
        fields["headers"] = headers
    return _envelope(said, headers, msgspec.json.encode(fields), data, codec)


def _envelope(
    said: Mapping[str, Any], headers: Mapping[str, Any], head: bytes, payload: bytes, codec: str
) -> Envelope:
    """Looks at every field that the broker knows."""
    message_id, producer_id = (_id(said, name) for name in ("message_id", "producer_id"))
    for name in _TEXTS:
        if not isinstance(said.get(name), str | None):
            raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name} is no text")
    timestamp = _milliseconds(said, "timestamp_unix_ms")
    mode = said.get("delivery_mode") or headers.get("delivery_mode") or ""
    if mode and mode not in _MODES:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"delivery_mode {mode!r:.80} is none of {_MODES}")
    tenant = headers.get("tenant_id") or ""
    if not isinstance(tenant, str) or len(tenant.encode()) > MAX_ID or "/" in tenant or "\0" in tenant:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"tenant_id {tenant!r:.80} is no name")
    deadline = _milliseconds(said, "deadline_unix_ms")
    ttl = _milliseconds(headers, "ttl_ms")
    ends = [end for end in (deadline, timestamp + ttl if "ttl_ms" in headers else 0) if end]
    due = _milliseconds(headers, "deliver_at_unix_ms")
    if not due and (delay := _milliseconds(headers, "delay_ms")):
        due = timestamp + delay
    return Envelope(
        message_id, producer_id, said["topic"], timestamp, head, payload, codec, headers, tenant, mode,
        min(ends, default=0), due, said.get("auth"),
    )  # fmt: skip


# --- its parts --------------------------------------------------------------------------------------------


def check_name(topic: bytes) -> str:
    """The topic that a frame names. Raises ProtocolError."""
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
        raise ProtocolError(Code.OVERSIZED_PAYLOAD, f"{len(data):,} bytes, of {limit:,} allowed")


def is_json(data: bytes) -> bool:
    """Whether these bytes are a JSON text that all readers can decode."""
    try:
        return _as_json(data) is not None
    except ProtocolError:
        return False


def _as_json(data: bytes) -> bytes | None:
    """The same without white space around it, if it is JSON; None if it is not. Raises ProtocolError for JSON
    that readers cannot decode."""
    try:
        text = bytes(msgspec.json.decode(data, type=msgspec.Raw))
        str(text, "utf-8")  # the decoder skips over strings without looking
        json_text.check(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    except (ValueError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"JSON that readers cannot decode: {error}") from error
    return text


def _block_of_json(data: bytes, limit: int) -> bytes | None:
    """JSON in an LZ4 block; None if it is none: many bytes are some block."""
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
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"the payload is no {codec}: {error!r:.200}") from error


def _base64(text: bytes, limit: int) -> bytes:
    try:
        data = base64.b64decode(msgspec.json.decode(text, type=str), validate=True)
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, f"a payload that is not JSON is no base64: {error}"
        ) from error
    _check_size(data, limit)
    return data


def _id(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not 0 < len(value.encode(errors="replace")) <= MAX_ID:
        raise ProtocolError(
            Code.MALFORMED_ENVELOPE, f"{name} {value!r:.80} is no text of 1 to {MAX_ID} bytes"
        )
    return value


def _milliseconds(said: Mapping[str, Any], name: str) -> int:
    """0 where it is not said."""
    value = said.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_MS:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"{name} {value!r:.80} is no number of milliseconds")
    return value
