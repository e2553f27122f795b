"""The support of each socket option of pyzmq: forwarded, stored without effect, or refused.

This table is the only source: `Socket.get` and `Socket.set` use it, and `docs/zmq-compat.md` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from transfer.transports.errors import ArgumentError, NotSupported, OptionError, OptionOverflow
from transfer.zmq.constants import SocketOption, SocketType

Value = int | bytes | str


class Effect(Enum):
    """The effect of an option."""

    FORWARDED = "works"
    IGNORED = "taken, no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """The handling of one option.

    attribute: the name of the option of `transfer`, for FORWARDED. kind: pyzmq's type of the value. default:
    the value that `get` returns for an option that is not forwarded; None if it cannot be read. only: the
    socket types that have the option; empty: all. reason: why it has no effect or is refused.
    """

    effect: Effect
    attribute: str = ""
    kind: type[int] | type[bytes] = int
    default: int | bytes | None = None
    readable: bool = True
    writable: bool = True
    only: tuple[SocketType, ...] = ()
    reason: str = ""


def _forwarded(
    names: str,
    kind: type[int] | type[bytes] = int,
    *,
    readable: bool = True,
    writable: bool = True,
    only: tuple[SocketType, ...] = (),
) -> dict[SocketOption, Rule]:
    return {
        SocketOption[name]: Rule(
            Effect.FORWARDED, name.lower(), kind, readable=readable, writable=writable, only=only
        )
        for name in names.split()
    }


def _fixed(
    effect: Effect, reason: str, **defaults: int | bytes | type[bytes] | None
) -> dict[SocketOption, Rule]:
    """Rules of options that are not forwarded. defaults: None for one that cannot be read, `bytes` for one of
    bytes that cannot be read."""
    return {
        SocketOption[name]: Rule(
            effect,
            kind=bytes if value is bytes or isinstance(value, bytes) else int,
            default=value if isinstance(value, int | bytes) else None,
            readable=isinstance(value, int | bytes),
            reason=reason,
        )
        for name, value in defaults.items()
    }


_TUNING = "tunes something that this implementation does not have"
_MULTICAST = "there are no multicast transports; nothing uses it"
_XPUB = "of XPUB and XSUB only the verbose and manual modes, NODROP and the welcome message are implemented"
_ROUTER = "it changes what a ROUTER means, and ours knows the standard meaning only"
_MESSAGES = "automatic messages at connect and disconnect are not implemented (draft in libzmq)"

RULES: dict[SocketOption, Rule] = {
    **_forwarded(
        "SNDHWM RCVHWM SNDTIMEO RCVTIMEO LINGER RECONNECT_IVL RECONNECT_IVL_MAX BACKLOG SNDBUF RCVBUF"
        " MAXMSGSIZE TCP_KEEPALIVE TCP_KEEPALIVE_CNT TCP_KEEPALIVE_IDLE TCP_KEEPALIVE_INTVL IMMEDIATE"
        " CONFLATE HANDSHAKE_IVL HEARTBEAT_IVL HEARTBEAT_TIMEOUT CONNECT_TIMEOUT"
    ),
    **_forwarded("HWM", readable=False),
    **_forwarded("ROUTER_MANDATORY ROUTER_HANDOVER", readable=False, only=(SocketType.ROUTER,)),
    **_forwarded("REQ_CORRELATE REQ_RELAXED", readable=False, only=(SocketType.REQ,)),
    **_forwarded("XPUB_VERBOSE XPUB_VERBOSER XPUB_MANUAL", readable=False, only=(SocketType.XPUB,)),
    **_forwarded("XPUB_NODROP", readable=False, only=(SocketType.XPUB, SocketType.PUB)),
    **_forwarded("XPUB_WELCOME_MSG", bytes, readable=False, only=(SocketType.XPUB, SocketType.PUB)),
    **_forwarded("ROUTING_ID", bytes),
    **_forwarded("SUBSCRIBE UNSUBSCRIBE", bytes, readable=False),
    **_forwarded("RCVMORE FD EVENTS TYPE", writable=False),
    **_forwarded("LAST_ENDPOINT", bytes, writable=False),
    **_fixed(
        Effect.IGNORED,
        _TUNING,
        AFFINITY=0,
        TOS=0,
        TCP_MAXRT=0,
        LOOPBACK_FASTPATH=0,
    ),
    **_fixed(
        Effect.IGNORED,
        _TUNING + "; pyzmq's libzmq, built without drafts, refuses it (EINVAL)",
        BUSY_POLL=None,
        IN_BATCH_SIZE=None,
        OUT_BATCH_SIZE=None,
        PRIORITY=None,
    ),
    **_fixed(Effect.IGNORED, _MULTICAST, RATE=100, RECOVERY_IVL=10000, MULTICAST_HOPS=1, MULTICAST_LOOP=1),
    **_fixed(Effect.IGNORED, _MULTICAST, MULTICAST_MAXTPDU=1500),
    **_fixed(
        Effect.IGNORED,
        "the endpoint says it: an address in brackets is IPv6, and names may resolve to both",
        IPV6=0,
        IPV4ONLY=1,
    ),
    **_fixed(
        Effect.IGNORED,
        "heartbeats are one-way, and each side judges by its own HEARTBEAT_TIMEOUT",
        HEARTBEAT_TTL=0,
    ),
    **_fixed(
        Effect.REFUSED,
        "every socket is safe to use from any thread; libzmq means something else by it",
        THREAD_SAFE=0,
    ),
    **_forwarded("MECHANISM", writable=False),
    **_forwarded("PLAIN_SERVER CURVE_SERVER ZAP_ENFORCE_DOMAIN"),
    **_forwarded("PLAIN_USERNAME PLAIN_PASSWORD ZAP_DOMAIN", bytes),
    **_forwarded("CURVE_PUBLICKEY CURVE_SECRETKEY CURVE_SERVERKEY", bytes, readable=False),
    **_fixed(
        Effect.REFUSED,
        "GSSAPI (Kerberos) is not implemented",
        GSSAPI_SERVER=None,
        GSSAPI_PRINCIPAL=bytes,
        GSSAPI_SERVICE_PRINCIPAL=bytes,
        GSSAPI_PLAINTEXT=None,
        GSSAPI_PRINCIPAL_NAMETYPE=None,
        GSSAPI_SERVICE_PRINCIPAL_NAMETYPE=None,
    ),
    **_fixed(
        Effect.REFUSED,
        "filters of who may connect are not implemented; bind to an interface that you trust",
        TCP_ACCEPT_FILTER=bytes,
        IPC_FILTER_PID=None,
        IPC_FILTER_UID=None,
        IPC_FILTER_GID=None,
        BINDTODEVICE=b"",
    ),
    **_fixed(
        Effect.REFUSED,
        "proxies of SOCKS are not implemented",
        SOCKS_PROXY=b"",
        SOCKS_USERNAME=b"",
        SOCKS_PASSWORD=b"",
    ),
    **_fixed(
        Effect.REFUSED,
        _ROUTER,
        ROUTER_RAW=None,
        ROUTER_NOTIFY=None,
        PROBE_ROUTER=None,
        CONNECT_ROUTING_ID=bytes,
        STREAM_NOTIFY=None,
    ),
    **_fixed(
        Effect.REFUSED,
        _XPUB,
        XPUB_MANUAL_LAST_VALUE=None,
        XSUB_VERBOSE_UNSUBSCRIBE=None,
        ONLY_FIRST_SUBSCRIBE=None,
        TOPICS_COUNT=None,
    ),
    **_fixed(Effect.REFUSED, _MESSAGES, HELLO_MSG=bytes, DISCONNECT_MSG=bytes, HICCUP_MSG=bytes),
    **_fixed(
        Effect.REFUSED, "subscriptions match prefixes; the inverse is not implemented", INVERT_MATCHING=0
    ),
    **_fixed(Effect.REFUSED, "a connection is tried again until disconnect", RECONNECT_STOP=0),
    **_fixed(Effect.REFUSED, "a socket opens its own descriptors", USE_FD=-1),
    **_fixed(Effect.REFUSED, "a property of contexts, and term always waits for linger", BLOCKY=None),
    **_fixed(Effect.REFUSED, "removed from libzmq too", METADATA=bytes),
    **_fixed(
        Effect.REFUSED,
        "TLS over WebSockets is not implemented (draft in libzmq)",
        WSS_KEY_PEM=bytes,
        WSS_CERT_PEM=bytes,
        WSS_TRUST_PEM=bytes,
        WSS_HOSTNAME=bytes,
        WSS_TRUST_SYSTEM=None,
    ),
    **_fixed(
        Effect.REFUSED,
        "VMCI is not implemented",
        VMCI_BUFFER_SIZE=None,
        VMCI_BUFFER_MIN_SIZE=None,
        VMCI_BUFFER_MAX_SIZE=None,
        VMCI_CONNECT_TIMEOUT=None,
    ),
    **_fixed(
        Effect.REFUSED,
        "NORM is not implemented (draft in libzmq)",
        NORM_MODE=None,
        NORM_UNICAST_NACK=None,
        NORM_BUFFER_SIZE=None,
        NORM_SEGMENT_SIZE=None,
        NORM_BLOCK_SIZE=None,
        NORM_NUM_PARITY=None,
        NORM_NUM_AUTOPARITY=None,
        NORM_PUSH=None,
    ),
}

#: (the option as enum, its rule) by its name, and by its number
RULES_BY_NAME = {name: (option, RULES[option]) for name, option in SocketOption.__members__.items()}
_BY_NUMBER = {int(option): (option, how) for option, how in RULES.items()}
#: options that libzmq keeps in 64 bits; others have 32
WIDE = frozenset(
    SocketOption[name]
    for name in ("AFFINITY", "MAXMSGSIZE", *(f"VMCI_BUFFER_{size}SIZE" for size in ("", "MIN_", "MAX_")))
)
_TRUTH, _NATURAL, _POSITIVE = range(2), range(2**31), range(1, 2**31)
#: what libzmq accepts for options that have no effect here
_ACCEPTED: dict[SocketOption, range] = {
    SocketOption.IPV6: _TRUTH,
    SocketOption.IPV4ONLY: _TRUTH,
    SocketOption.TOS: _NATURAL,
    SocketOption.TCP_MAXRT: _NATURAL,
    SocketOption.RECOVERY_IVL: _NATURAL,
    SocketOption.RATE: _POSITIVE,
    SocketOption.MULTICAST_HOPS: _POSITIVE,
    SocketOption.MULTICAST_MAXTPDU: _POSITIVE,
    SocketOption.HEARTBEAT_TTL: range(-99, 6_553_600),  # tenths of seconds, in 16 bits
}


def rule(option: int) -> tuple[SocketOption, Rule]:
    """Returns (the option as enum, its rule). Raises OptionError for a number that pyzmq does not have."""
    found = _BY_NUMBER.get(int(option)) if isinstance(option, int) else None
    if found is None:
        raise OptionError(f"no socket option has the number {option!r}")
    return found


def checked(option: SocketOption, how: Rule, value: Any) -> int | bytes:
    """Converts `value` to the option's type. Raises ArgumentError and OptionOverflow, which are TypeError and
    OverflowError as pyzmq's."""
    if isinstance(value, str) and how.kind is bytes:
        raise ArgumentError(f"text for {option.name}", hint="give bytes, or use setsockopt_string")
    if how.kind is bytes:
        try:
            return bytes(memoryview(value))
        except TypeError:
            raise ArgumentError(f"{option.name} takes bytes, not {type(value).__name__}") from None
    if not isinstance(value, int):
        hint = "times are whole milliseconds, sizes bytes" if isinstance(value, str | float) else ""
        raise ArgumentError(f"{option.name} takes an int, not {value!r:.40}", hint=hint)
    limit = 1 << (63 if option in WIDE else 31)
    if not -limit <= value < limit:
        raise OptionOverflow(f"{option.name} cannot be {value}: it is at most {limit - 1}")
    if option is SocketOption.MAXMSGSIZE:
        return max(int(value), -1)  # to libzmq each negative number is "no limit"
    # To libzmq each positive number switches these on, where it takes only 0 and 1 for others.
    return int(value) if not how.only else min(int(value), 1)


def refuse(option: SocketOption, how: Rule, value: int | bytes) -> None:
    """Raises OptionError for a value that libzmq refuses; NotSupported, unless `value` is the default."""
    if option in _ACCEPTED and value not in _ACCEPTED[option]:
        raise OptionError(f"{option.name} cannot be {value!r}")
    if how.effect is Effect.REFUSED and (how.default is None or value != how.default):
        raise NotSupported(f"{option.name} is not supported: {how.reason}", hint="see docs/zmq-compat.md")
