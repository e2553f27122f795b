"""The identity of this process in hellos. Determined at the first use, not at import."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from transfer.transports.core.wire import MAX_DATA, SocketType
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.hello import APPROVAL, MAX_NUMBER, PROVES_FIRST, Hello

#: words for abilities of this release beyond version 1; a peer without one of them is served without it
FEATURES = frozenset(
    {
        "control",
        "multipart",
        "crc32",
        "extended_tensor",
        "lz4",
        "credit",
        "subscribe_ack",
        PROVES_FIRST,
        APPROVAL,
    }
)

#: the prefix of identities for one connection alone, which no text has
ONE_CONNECTION = b"\xffonce"


def one_time_identity() -> bytes:
    """A new identity at each call, so that a ROUTER can tell two connections apart. Metrics do not use it as
    a name."""
    return ONE_CONNECTION + os.urandom(11)


@functools.cache
def host_id() -> str:
    """Equal for two processes if they may use shared memory: boot, user, network namespace.

    Empty where the system does not provide it, which equals no other.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot = file.read().strip()
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return ""
    return f"{boot}:{os.getuid()}:{namespace}"


@functools.cache
def _epoch_of(pid: int) -> str:
    return secrets.token_hex(8)


def process_epoch() -> str:
    """Random for each process, also a forked child: a peer with another epoch is another peer."""
    return _epoch_of(os.getpid())


def new_nonce() -> str:
    """128 random bits for one connection, hexadecimal."""
    return secrets.token_hex(16)


def make_hello(
    socket_type: SocketType,
    *,
    routing_id: bytes = b"",
    instance: str = "",
    proves: bool = False,
    max_message: int = MAX_DATA,
    offer: Offer | None = None,
    features: Iterable[str] = FEATURES,
    lazy: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> Hello:
    """A hello of this process for one connection, with a new nonce.

    max_message: the largest message that this side accepts, in bytes.
    """
    return Hello(
        socket_type,
        features=frozenset(features),
        routing_id=routing_id,
        host_id=host_id(),
        epoch=process_epoch(),
        nonce=new_nonce(),
        instance=instance,
        proves=proves,
        limits={"max_message": min(max_message, MAX_NUMBER)},
        offer=Offer() if offer is None else offer,
        lazy=lazy,
        extra={} if extra is None else extra,
    )
