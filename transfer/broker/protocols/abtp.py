"""abtp/1: ZeroMQ frames as requests, and answers as frames. Pure; see docs/protocols/abtp.md.

`read_frames` never raises for invalid input from a peer: it returns `Rejected`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transfer.broker.core.dispatcher_actions import (
    Ack,
    Control,
    Deregister,
    Deregistered,
    Heartbeat,
    Nack,
    Register,
    Registered,
    Reply,
    Taken,
)
from transfer.broker.core.sessions import ConsumerCapabilities
from transfer.broker.protocols.abtp_envelope import Envelope, Origin, check_name, read_new, read_old
from transfer.broker.protocols.abtp_words import CONTROL, MAX_CONTROL, MAX_ID, SPEC_VERSION, Code, to_json
from transfer.transports.errors import ProtocolError, comes_with

with comes_with("fronts", __name__):
    import msgspec

#: default endpoints of a broker
ROUTER_ENDPOINT, PUB_ENDPOINT = "tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"
#: bit of the flags frame: the producer requests an answer
WANTS_ANSWER = 1
#: limit on a consumer's subscriptions
MAX_SUBSCRIPTIONS = 1024
#: limit on the codecs, and compressors, that a consumer lists
MAX_NAMES = 64
_VERSIONS = (SPEC_VERSION.encode(), b"1", b"\x01")


@dataclass(frozen=True, slots=True)
class Published:
    """A producer's message. answer: the producer requests an acknowledgement."""

    envelope: Envelope
    answer: bool


@dataclass(frozen=True, slots=True)
class Rejected:
    """The answer to invalid frames."""

    code: str
    text: str
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class AbtpControl:
    """A consumer's control message, with its bytes and its signature; b"" without one."""

    control: Control
    data: bytes
    signature: bytes


Request = Published | AbtpControl | Rejected


@dataclass(frozen=True, slots=True)
class AbtpLimits:
    """Limits of a front. max_payload: bytes of a payload, also when decompressed."""

    max_payload: int = 16 << 20


def read_frames(frames: Sequence[bytes], now_ms: int, new_id: str, limits: AbtpLimits) -> Request:
    """Reads a peer's request. frames: as a ROUTER receives them, its identity first. new_id: for a message
    without one."""
    peer, *rest = frames
    answer = len(rest) > 1 and not rest[0]
    if answer:
        del rest[0]
    message_id = ""
    try:
        if len(rest) in (2, 3) and rest[0] == CONTROL:
            return AbtpControl(read_control(rest[1]), rest[1], b"".join(rest[2:]))
        if len(rest) not in (2, 5):
            text = f"{len(rest)} frames: topic and payload, or version, flags, topic, headers and payload"
            raise ProtocolError(Code.MALFORMED_ENVELOPE, text)
        if len(rest) == 5:
            answer = answer or bool(rest[1][:1] and rest[1][0] & WANTS_ANSWER)
            message_id = _message_id(rest[3])
            if rest[0] not in _VERSIONS:
                text = f"{rest[0]!r:.40}; this broker speaks {SPEC_VERSION}"
                raise ProtocolError(Code.UNSUPPORTED_VERSION, text)
            if len(rest[3]) > MAX_CONTROL:
                raise ProtocolError(Code.MALFORMED_ENVELOPE, f"headers of more than {MAX_CONTROL:,} bytes")
        topic, data = check_name(rest[-3 if len(rest) == 5 else 0]), rest[-1]
        origin = Origin(topic, peer.hex(), new_id, now_ms, limits.max_payload)
        message_id = message_id or _message_id(data)
        if len(rest) == 2:
            return Published(read_old(data, origin), answer)
        return Published(read_new(rest[3], data, origin), answer)
    except ProtocolError as error:
        text = str(error).removeprefix(f"{error.reason}: ")
        return Rejected(error.reason, text, message_id)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        # From the decoder: text that is not UTF-8 raises UnicodeDecodeError instead of DecodeError.
        return Rejected(Code.MALFORMED_ENVELOPE, f"the frames cannot be read: {error!r:.200}", message_id)


class _Named(msgspec.Struct):
    message_id: str = ""


def _message_id(data: bytes) -> str:
    """Returns the message's id for an error's answer, or ""."""
    if b'"message_id"' not in data[:MAX_CONTROL]:
        return ""
    try:
        return msgspec.json.decode(data, type=_Named).message_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


# --- control ----------------------------------------------------------------------------------------------


class _Capabilities(msgspec.Struct):
    supports_ack: bool = True
    supports_compression: bool | str | list[str] = False
    supports_codec: bool | str | list[str] = True
    max_inflight: int = 1024


class _Control(msgspec.Struct, tag_field="type"):
    consumer_id: str
    session_id: str | None = None
    reply: bool = False


class _Register(_Control, tag="consumer.register"):
    tenant_id: str = ""
    mode: str = "direct"
    subscriptions: list[str] = []
    capabilities: _Capabilities = msgspec.field(default_factory=_Capabilities)


class _Heartbeat(_Control, tag="consumer.heartbeat"):
    pass


class _Deregister(_Control, tag="consumer.deregister"):
    pass


class _Ack(_Control, tag="ack", kw_only=True):
    message_id: str
    status: Literal["processed"] = "processed"
    delivery_id: str | None = None


class _Nack(_Control, tag="nack", kw_only=True):
    message_id: str
    status: Literal["retryable_error", "terminal_error"] = "retryable_error"
    reason: str | None = None
    delivery_id: str | None = None


_control = msgspec.json.Decoder(_Register | _Heartbeat | _Deregister | _Ack | _Nack)


def read_control(data: bytes) -> Control:
    """Reads a consumer's request. Raises ProtocolError."""
    if len(data) > MAX_CONTROL:
        raise ProtocolError(Code.MALFORMED_CONTROL, f"more than {MAX_CONTROL:,} bytes")
    try:
        ask = _control.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(Code.MALFORMED_CONTROL, str(error)) from error
    if not 0 < len(ask.consumer_id.encode()) <= MAX_ID or "\0" in ask.consumer_id:
        raise ProtocolError(Code.MALFORMED_CONTROL, f"a consumer_id has 1 to {MAX_ID} bytes, and no NUL")
    for name in ("session_id", "message_id", "delivery_id"):
        if len((getattr(ask, name, None) or "").encode()) > MAX_ID:
            raise ProtocolError(Code.MALFORMED_CONTROL, f"a {name} of more than {MAX_ID} bytes")
    match ask:
        case _Register():
            return _registration(ask)
        case _Heartbeat():
            if ask.session_id is None:
                raise ProtocolError(Code.MALFORMED_CONTROL, "a heartbeat needs a session_id")
            return Heartbeat(ask.consumer_id, ask.session_id, ask.reply)
        case _Deregister():
            return Deregister(ask.consumer_id, ask.session_id)
        case _Ack():
            return Ack(ask.message_id, ask.consumer_id, ask.session_id, ask.delivery_id, ask.reply)
        case _:
            terminal, reason = ask.status == "terminal_error", (ask.reason or "")[:1000]
            return Nack(
                ask.message_id, ask.consumer_id, terminal, reason, ask.session_id, ask.delivery_id, ask.reply
            )


def _registration(ask: _Register) -> Register:
    given, tenant = ask.capabilities, ask.tenant_id
    if given.max_inflight < 1:
        raise ProtocolError(Code.MALFORMED_CONTROL, f"max_inflight {given.max_inflight} must be at least 1")
    if len(ask.subscriptions) > MAX_SUBSCRIPTIONS:
        raise ProtocolError(Code.MALFORMED_CONTROL, f"more than {MAX_SUBSCRIPTIONS} subscriptions")
    if len(tenant.encode()) > MAX_ID or "/" in tenant or "\0" in tenant:
        raise ProtocolError(Code.MALFORMED_CONTROL, f"tenant_id {tenant!r:.80} is not a valid name")
    capabilities = ConsumerCapabilities(
        supports_ack=given.supports_ack,
        supports_compression=_names(given.supports_compression, ("lz4",)),
        supports_codec=_names(given.supports_codec, ("json", "raw"), ("json", "raw")),
        max_inflight=given.max_inflight,
    )
    subscriptions = tuple(dict.fromkeys(ask.subscriptions))
    return Register(ask.consumer_id, tenant, ask.mode, subscriptions, capabilities, ask.session_id)


def _names(given: bool | str | list[str], yes: tuple[str, ...], no: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the names that a consumer lists; True stands for `yes`, False and nothing for `no`."""
    if isinstance(given, bool):
        return yes if given else no
    listed = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if not any(listed):
        return no
    if len(listed) > MAX_NAMES or any(len(name) > MAX_ID for name in listed):
        text = f"more than {MAX_NAMES} codecs or compressors, or a name of more than {MAX_ID}"
        raise ProtocolError(Code.MALFORMED_CONTROL, text)
    return listed


# --- answers ----------------------------------------------------------------------------------------------


def encode_accepted(message_id: str) -> bytes:
    """Encodes the answer to a producer whose message was taken."""
    return _json({"type": "accepted", "message_id": message_id})


def encode_error(code: str, text: str, message_id: str = "", delivery_id: str = "") -> bytes:
    """Encodes the answer to a refused request. delivery_id: of an ACK."""
    fields = {"type": "error", "code": code, "message": text, "message_id": message_id}
    if delivery_id:
        fields["delivery_id"] = delivery_id
    return _json(fields)


def encode_reply(reply: Reply) -> bytes:
    """Encodes the answer to a consumer."""
    match reply:
        case Registered(consumer_id, session_id, status):
            named = {"consumer_id": consumer_id, "session_id": session_id}
            return _json({"type": "consumer.registered", **named, "status": status})
        case Deregistered(consumer_id, session_id):
            named = {"consumer_id": consumer_id, "session_id": session_id}
            return _json({"type": "consumer.deregistered", **named, "status": "deregistered"})
        case Taken(request, consumer_id, message_id, status, delivery_id):
            named = {"consumer_id": consumer_id, "message_id": message_id, "delivery_id": delivery_id}
            return _json({"type": f"{request}.accepted", **named, "status": status})
        case _:
            return encode_error(reply.fault, reply.text, reply.message_id, reply.delivery_id)


def encode_register(ask: Register) -> bytes:
    """Encodes a consumer's request to begin, or resume, a session. Raises UsageError."""
    given = ask.capabilities
    return to_json(
        {
            "type": "consumer.register",
            "consumer_id": ask.consumer_id,
            "tenant_id": ask.tenant,
            "mode": ask.mode,
            "subscriptions": ask.subscriptions,
            "session_id": ask.session_id,
            "capabilities": {
                "supports_ack": given.supports_ack,
                "supports_compression": given.supports_compression,
                "supports_codec": given.supports_codec,
                "max_inflight": given.max_inflight,
            },
        },
        "the registration",
    )


def encode_control(ask: Heartbeat | Deregister | Ack | Nack, now_ms: int) -> bytes:
    """Encodes a consumer's request in a session. Raises UsageError."""
    fields: dict[str, Any] = {"consumer_id": ask.consumer_id, "session_id": ask.session_id}
    match ask:
        case Heartbeat():
            fields |= {"type": "consumer.heartbeat", "timestamp": now_ms, "reply": ask.reply}
        case Deregister():
            fields |= {"type": "consumer.deregister"}
        case Ack():
            fields |= {"type": "ack", "status": "processed", "processed_at": now_ms}
        case Nack():
            status = "terminal_error" if ask.terminal else "retryable_error"
            fields |= {"type": "nack", "status": status, "reason": ask.reason}
    if isinstance(ask, Ack | Nack):
        fields |= {"message_id": ask.message_id, "delivery_id": ask.delivery_id, "reply": ask.reply}
    return to_json(fields, "the control message")


def _json(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields)
