"""Who this process is, as hellos tell it. Found out at the first use, not at import."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from transfer.transports.core.wire import MAX_DATA, SocketType
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.hello import MAX_NUMBER, PROVES_FIRST, Hello

#: words for what this release can do beyond version 1; a peer without one of them is served without it
FEATURES = frozenset(
    {"control", "multipart", "crc32", "extended_tensor", "lz4", "credit", "subscribe_ack", PROVES_FIRST}
)

#: identities for one connection alone begin so, as no text does
ONE_CONNECTION = b"\xffonce"


def one_time_identity() -> bytes:
    """Another one each time, so that a ROUTER knows a connection from the one before. Metrics take it for no
    name."""
    return ONE_CONNECTION + os.urandom(11)


@functools.cache
def host_id() -> str:
    """Equal for two processes if they may use the same-host ways: boot, user, network namespace.

    Empty where the system does not tell, which equals nobody's.
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
    """Random for each process, a forked child's too: a peer with another epoch is another peer."""
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
    """A hello of this process for one connection, with a nonce of its own.

    max_message: the largest message that we take, in bytes.
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
