"""The messages that two sides exchange before the first payload. Pure: bytes in, decisions out.

The connecting side sends its hello first, the other answers with its own or refuses. Both are control
frames whose data is the control byte and a JSON object:

    hello    01 {"versions": [1, 1], "type": 4, "features": [...], "id": "hex", "nonce": "hex", ...}
    refused  07 {"reason": "socket_type", "message": "..."}

Unknown keys are ignored, so that later releases can add some. `docs/wire.md` lists them all.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from transfer.transports.address import BASE, LOCAL, POLICIES
from transfer.transports.core.wire import HEADER, MAGIC, VERSION, Control, Flag, SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.choice import Choice, Offer, choose
from transfer.transports.handshake.compatibility import compatible, talks_to
from transfer.transports.security.mechanism import DENIALS, KEY, counterpart

#: for the JSON of a hello or a refusal, in bytes: the sender has not authenticated yet
MAX_HELLO = 16 * 1024
MAX_TEXT = 1024
MAX_LIST = 64
#: characters of the text why a transport is missing
MAX_WHY = 200
MAX_ROUTING_ID = 255
#: levels of lists and objects inside `extra`
MAX_DEPTH = 32
#: above it a JSON number may be inexact
MAX_NUMBER = 1 << 53

#: reasons for which a peer is refused until another peer has gone
PLACE_TAKEN = frozenset({"identity", "pair_busy"})
#: reasons for which an authenticator refuses a peer -> its status
DENIED = {f"denied_{status}": status for status in sorted(DENIALS)}
#: words that a refusal may carry; others are shown as "refused"
REASONS = frozenset(
    {
        "version",
        "socket_type",
        "token",
        "self_connect",
        "policy",
        "hello",
        "magic",
        "length",
        "flags",
        "busy",
        "mechanism",
        "credentials",
        *DENIED,
        *PLACE_TAKEN,
    }
)
#: the feature of a side that proves its token first where it connects, as this version does
PROVES_FIRST = "connecting_proves_first"
#: the feature of a side that waits for the other one's approval, and knows ZeroMQ's mechanisms
APPROVAL = "approval"
_SAME_TOKEN = "give both sides the same token"
_SAME_MECHANISM = "PLAIN and CURVE need their options on both sides, those of the server on one of them"
_UP_TO_DATE = "neighbouring releases always talk: bring the older side up to date"
#: hints for the reasons of a refusal, which carries none
_HINTS = {
    **dict.fromkeys(DENIED, "its authenticator does not accept this side's address, password or key"),
    "mechanism": _SAME_MECHANISM,
    "token": _SAME_TOKEN,
    "version": _UP_TO_DATE,
    "identity": "give each socket its own routing_id; it retries until the other one has gone",
    "pair_busy": "a PAIR is one to one: close the other one, or use PUSH/PULL or ROUTER/DEALER",
}
_WORD = re.compile(r"[a-z][a-z0-9_.:-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side states about itself.

    socket_type: of the side. versions: (oldest, newest) of the wire format that it understands.
    features: words for abilities beyond the version. routing_id: its name at a ROUTER.
    host_id: equal on one machine, user and network namespace; empty if unknown. epoch: random,
    one for each process, so that a restart shows. nonce: random, one for each connection, hex.
    proves: it knows a token, and requires that the peer proves the same (see handshake/proving.py).
    limits: name -> number, for instance {"max_message": 17179869184}. offer: transports and request.
    mechanism: ZeroMQ's, with the side's part: "plain", "plain_server", "curve", "curve_server"; "": NULL.
    approves: the peer has to wait for this side's approval. key: the public key for this connection, of a
    server of CURVE, hex.
    instance: random, one for each connecting side and kept for its reconnections, hex: equal values mean the
    same side. A secret of the two. lazy: the sender queues before there is a peer. extra: values that the
    owner adds (JSON).
    plain: True only for a hello that `plain_peer` made: the peer sent none.
    """

    socket_type: SocketType
    versions: tuple[int, int] = (VERSION, VERSION)
    features: frozenset[str] = frozenset()
    routing_id: bytes = b""
    host_id: str = ""
    epoch: str = ""
    nonce: str = ""
    proves: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    offer: Offer = field(default_factory=Offer)
    lazy: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    plain: bool = False
    instance: str = field(default="", repr=False)
    mechanism: str = ""
    approves: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of the handshake.

    version: of the wire format. features: those that both have. remote: the peer's hello. choice: the
    transport for the data, and why. plain: the peer speaks plain version 1 and must be sent no flag
    above ACK and no control frame. encrypted: TCP between the two is TLS. authenticated: the peer has
    authenticated, by a certificate, a token or a mechanism of ZeroMQ. properties: of a peer that this side
    approved, by ZeroMQ's names; among them what the authenticator says.
    """

    version: int
    features: frozenset[str]
    remote: Hello
    choice: Choice
    plain: bool = False
    encrypted: bool = False
    authenticated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def data_encrypted(self) -> bool:
        """Messages go through TLS, and not past it."""
        return self.encrypted and self.choice.transport in (BASE, "ipc")


def is_same(one: Hello, other: Hello) -> bool:
    """Whether both are of one connecting side, which has lost a connection and reconnects."""
    return bool(one.instance) and hmac.compare_digest(one.instance, other.instance)


def plain_peer(socket_type: SocketType) -> Hello:
    """The hello that stands for a peer that sends none."""
    return Hello(socket_type, plain=True)


def negotiate(local: Hello, remote: Hello, *, policy: str | None = None, base: str = BASE) -> Agreement:
    """The agreement of the two, or HandshakeError with one of REASONS. Both sides decide alike.

    policy: a stricter one from the endpoint. base: the transport that the connection uses already.
    """
    if local.nonce and local.nonce == remote.nonce:
        raise HandshakeError("self_connect", "the connection ends at the socket where it began")
    if not compatible(local.socket_type, remote.socket_type):
        raise HandshakeError(
            "socket_type",
            f"{local.socket_type.name} cannot talk to {remote.socket_type.name}",
            hint=talks_to(local.socket_type),
        )
    _check_mechanisms(local, remote)
    if local.proves != remote.proves:
        _refuse_token(remote)
    if local.proves and PROVES_FIRST not in remote.features:
        raise HandshakeError(
            "token",
            "the peer is an older version, which proves its token in another order",
            hint="bring the older side up to date: only sides without a token talk to it",
        )
    version = min(local.versions[1], remote.versions[1])
    if version < max(local.versions[0], remote.versions[0]):
        raise HandshakeError(
            "version",
            f"this side understands versions {local.versions[0]} to {local.versions[1]}, "
            f"the peer {remote.versions[0]} to {remote.versions[1]}",
            hint=_UP_TO_DATE,
        )
    if remote.plain:
        choice = Choice(base, "the peer speaks plain version 1, without hello")
    else:
        mine, theirs = local.offer, remote.offer
        apart = _why_not_one_host(local, remote)
        if apart is not None:
            mine, theirs = _without_shared_memory(mine), _without_shared_memory(theirs)
        choice = choose(mine, theirs, policy, base)
        if apart:
            choice = replace(choice, reason=f"{choice.reason}; not local: {apart}")
    return Agreement(version, local.features & remote.features, remote, choice, remote.plain)


def _why_not_one_host(local: Hello, remote: Hello) -> str | None:
    """None: on one host. Else why not, if it is one machine and both would have used it; else ""."""
    if local.host_id and local.host_id == remote.host_id:
        return None
    here, there = local.host_id.split(":"), remote.host_id.split(":")
    if here[0] != there[0] or not here[0] or not len(here) == len(there) == 3:
        return ""
    if LOCAL not in local.offer.transports or LOCAL not in remote.offer.transports:
        return ""
    return (
        "the peer runs under another user"
        if here[1] != there[1]
        else "the peer has another network namespace"
    )


def _without_shared_memory(offer: Offer) -> Offer:
    """The part of an offer for a peer on another host, or in another network namespace."""
    return replace(offer, transports=tuple(name for name in offer.transports if name != LOCAL))


def _check_mechanisms(local: Hello, remote: Hello) -> None:
    if remote.mechanism != counterpart(local.mechanism):
        mine, theirs = ((one.mechanism or "null").replace("_", " ") for one in (local, remote))
        raise HandshakeError(
            "mechanism", f"this side has {mine}, the peer has {theirs}", hint=_SAME_MECHANISM
        )
    if local.approves and APPROVAL not in remote.features:
        why = "the peer is an older version, which does not wait for an authenticator"
        raise HandshakeError("mechanism", why, hint=_UP_TO_DATE)
    if remote.mechanism == "curve_server" and len(remote.key) != 2 * KEY:
        raise HandshakeError("mechanism", "the peer has no key of CURVE for this connection")


def _refuse_token(remote: Hello) -> NoReturn:
    if remote.proves:
        raise HandshakeError("token", "the peer has a token, this side has none", hint=_SAME_TOKEN)
    what = "sent no hello, so it has no token" if remote.plain else "has no token, this side has one"
    raise HandshakeError("token", f"the peer {what}", hint=_SAME_TOKEN)


# --- bytes ------------------------------------------------------------------------------------


def frame(socket_type: SocketType, data: bytes) -> bytes:
    """A control frame around `data`, without topic and checksum."""
    return HEADER.pack(MAGIC, VERSION, socket_type, Flag.CONTROL, 0, 0, len(data), 0) + data


def encode(hello: Hello) -> bytes:
    """The hello as one frame. Raises HandshakeError("hello") if it is longer than MAX_HELLO."""
    fields: dict[str, Any] = {
        "versions": list(hello.versions),
        "type": int(hello.socket_type),
        "features": sorted(hello.features),
        "id": hello.routing_id.hex(),
        "host": hello.host_id,
        "epoch": hello.epoch,
        "nonce": hello.nonce,
        "limits": dict(hello.limits),
        "transports": list(hello.offer.transports),
        "protocol": hello.offer.protocol,
        "policy": hello.offer.policy,
        "source": hello.offer.source,
        "lazy": hello.lazy,
        "extra": dict(hello.extra),
    }
    if hello.offer.lacking:
        fields["lacking"] = {name: why[:MAX_WHY] for name, why in hello.offer.lacking.items()}
    if hello.instance:
        fields["instance"] = hello.instance
    if hello.proves:
        fields["proves"] = True
    if hello.approves:
        fields["approves"] = True
    for name in ("mechanism", "key"):
        if getattr(hello, name):
            fields[name] = getattr(hello, name)
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_HELLO:
        raise HandshakeError("hello", f"the hello would be {len(body)} bytes long, {MAX_HELLO} are allowed")
    return frame(hello.socket_type, bytes([Control.HELLO]) + body)


def encode_refusal(socket_type: SocketType, error: HandshakeError) -> bytes:
    """The refusal of a hello as one frame, worded for the side that will read it."""
    message = str(mirrored(error)).split("\n", 1)[0][:MAX_TEXT]
    body = json.dumps({"reason": error.reason, "message": message}).encode()
    return frame(socket_type, bytes([Control.REFUSED]) + body)


def mirrored(error: HandshakeError) -> HandshakeError:
    """The error worded for the other side: "this side" here is "the peer" there, and vice versa."""
    swapped = {"this side": "the peer", "the peer": "this side"}
    message = re.sub("|".join(swapped), lambda found: swapped[found[0]], error.message)
    return HandshakeError(error.reason, message, hint=error.hint)


def decode_body(data: bytes, socket_type: SocketType) -> Hello:
    """A hello from the data of its frame. Raises HandshakeError: "hello", or the peer's refusal.

    socket_type: as in the frame's header; the hello must name the same.
    """
    kind, fields = data[:1], _object(data[1:])
    if kind == bytes([Control.REFUSED]):
        raise _refusal(fields)
    if kind != bytes([Control.HELLO]):
        _bad("the first control frame is no hello")
    if _number(fields, "type", 255) != socket_type:
        _bad("the hello and its frame name different socket types")
    oldest, newest = _versions(fields)
    protocol, policy = _word(fields, "protocol", "auto"), _word(fields, "policy", "auto")
    if policy not in POLICIES:
        _bad("an unknown policy")
    transports = tuple(_words(fields, "transports"))
    return Hello(
        socket_type,
        (oldest, newest),
        frozenset(_words(fields, "features")),
        _hex(fields, "id", MAX_ROUTING_ID),
        _string(fields, "host"),
        _string(fields, "epoch"),
        _hex(fields, "nonce", 64).hex(),
        _boolean(fields, "proves"),
        _limits(fields),
        Offer(transports, protocol, policy, _string(fields, "source"), _texts(fields, "lacking")),
        _boolean(fields, "lazy"),
        _shallow(_mapping(fields, "extra"), "extra"),
        instance=_hex(fields, "instance", 64).hex(),
        mechanism=_word(fields, "mechanism", "") if "mechanism" in fields else "",
        approves=_boolean(fields, "approves"),
        key=_hex(fields, "key", KEY).hex(),
    )


def refusal_in(data: bytes) -> HandshakeError | None:
    """The error of a REFUSED that comes later in a handshake, to a peer that cannot be accepted now. None: it
    is another frame, or has another reason."""
    found = refusal_of(data) if data[0] == Control.REFUSED else None
    return found if found is not None and found.reason in {"busy", *PLACE_TAKEN} else None


def refusal_of(data: bytes) -> HandshakeError:
    """The error of a REFUSED; "hello" if it cannot be read."""
    try:
        return _refusal(_object(data[1:]))
    except HandshakeError as error:
        return error


def _refusal(fields: Mapping[str, Any]) -> HandshakeError:
    reason = fields.get("reason")
    known = reason if isinstance(reason, str) and reason in REASONS else "refused"
    message = fields.get("message", "")
    shown = message[:MAX_TEXT] if isinstance(message, str) and message.isprintable() else ""
    shown = shown.removeprefix(f"{known}: ")  # the error shows the reason itself
    return HandshakeError(known, f"the peer refused: {shown or known}", hint=_HINTS.get(known, ""))


# --- strict parsing: each value has the right type, or the hello is refused ----------------------


def _bad(message: str) -> NoReturn:
    raise HandshakeError("hello", message)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_bad, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise HandshakeError("hello", "the hello is no JSON") from error
    if not isinstance(value, dict):
        _bad("the hello is no JSON object")
    return value


def _finite(text: str) -> float:
    """1e999 is valid JSON and becomes infinity, which could not be encoded again."""
    number = float(text)
    if not math.isfinite(number):
        _bad("a number that is too large")
    return number


def _string(fields: Mapping[str, Any], key: str, default: str = "") -> str:
    value = fields.get(key, default)
    # json accepts half a surrogate pair, which no encoder accepts afterwards
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        _bad(f"{key!r} is not a short text")
    return value


def _word(fields: Mapping[str, Any], key: str, default: str) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or not _WORD.match(value):
        _bad(f"{key!r} is not a word")
    return value


def _words(fields: Mapping[str, Any], key: str) -> list[str]:
    value = fields.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_LIST:
        _bad(f"{key!r} is not a short list")
    return [_word({key: word}, key, "") for word in value]


def _number(fields: Mapping[str, Any], key: str, limit: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= limit:  # True is an int, too
        _bad(f"{key!r} is not a number from 0 to {limit}")
    return value


def _boolean(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key, False)
    if not isinstance(value, bool):
        _bad(f"{key!r} is neither true nor false")
    return value


def _hex(fields: Mapping[str, Any], key: str, limit: int) -> bytes:
    try:
        value = bytes.fromhex(_string(fields, key))
    except ValueError as error:
        raise HandshakeError("hello", f"{key!r} is not hexadecimal") from error
    if len(value) > limit:
        _bad(f"{key!r} is longer than {limit} bytes")
    return value


def _versions(fields: Mapping[str, Any]) -> tuple[int, int]:
    value = fields.get("versions")
    if not isinstance(value, list) or len(value) != 2:
        _bad("'versions' is not a pair")
    oldest, newest = (_number({"versions": number}, "versions", 1 << 16) for number in value)
    if not 1 <= oldest <= newest:
        _bad("'versions' is not an ascending pair")
    return oldest, newest


def _mapping(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = fields.get(key, {})
    if not isinstance(value, dict):
        _bad(f"{key!r} is not an object")
    return value


def _texts(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    value = _mapping(fields, key)
    if len(value) > MAX_LIST:
        _bad(f"{key!r} is not a short object")
    return {_word({key: name}, key, ""): _string(value, name) for name in value}


def is_shallow(value: dict[str, Any]) -> bool:
    """At most MAX_DEPTH levels. A deeper value could be parsed here, where the stack is short, and exhaust
    the stack in a repr or a comparison elsewhere."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
        if not level:
            return True
    return False


def _shallow(value: dict[str, Any], key: str) -> dict[str, Any]:
    if not is_shallow(value):
        _bad(f"{key!r} has more than {MAX_DEPTH} levels")
    return value


def _limits(fields: Mapping[str, Any]) -> dict[str, int]:
    value = _mapping(fields, "limits")
    if len(value) > MAX_LIST:
        _bad("'limits' is not a short object")
    return {_word({"limits": key}, "limits", ""): _number(value, key, MAX_NUMBER) for key in value}
