"""Limits who may listen: beyond this machine only an endpoint that authenticates its clients."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

from transfer.transports.errors import SecurityError
from transfer.transports.security.settings import Security

HINT = (
    "give it certificates (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY, TRANSFER_TLS_CA) or a token "
    "(TRANSFER_TOKEN_FILE); or accept connections without authentication: TRANSFER_UNAUTHENTICATED=allow"
)


@lru_cache(maxsize=1024)  # asked for both ends of each connection
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there. host: an address, in brackets or not, or
    "localhost"."""
    if host == "localhost":
        return True
    try:
        number = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(number, "ipv4_mapped", None)
    return (mapped or number).is_loopback


def on_loopback(connection: socket.socket) -> bool:
    """Whether a connection is to or from a loopback address."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        ends = connection.getsockname(), connection.getpeername()
    except OSError:  # it has ended already
        return True
    return any(is_loopback(host) for host, *_ in ends)


def skips_token(security: Security) -> bool:
    """Whether a protocol without tokens would accept clients without one, although a token is set."""
    allowed = security.unauthenticated or security.tokenless
    return security.has_token and not security.asks_certificates and not allowed


def is_private(endpoint: str) -> bool:
    """Whether only this user's processes can reach it: by a socket file, with its mode."""
    return endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@")


def check_connecting(peer: str, security: Security) -> None:
    """For clients of a protocol without tokens. If a token is set, any user of the peer's host may take the
    port when the broker is down, and only TLS authenticates the server. Raises SecurityError."""
    if security.has_token and not security.tls and not (security.unauthenticated or security.tokenless):
        raise SecurityError(
            f"{peer} cannot prove the token: the protocol has no tokens",
            hint="give this side certificates (TRANSFER_TLS_CA), use the broker's own protocol, or send "
            "the messages to any server: TRANSFER_TOKENLESS=allow",
        )


def check_listening(
    host: str, where: str, security: Security, *, token: bool = True, shown: bool = False
) -> None:
    """Raises SecurityError. where: the endpoint, for the error. token: its protocol has tokens. shown: it
    sends the token instead of a proof, which only TLS encrypts."""
    if security.unauthenticated or is_loopback(host):
        return
    authenticates = security.asks_certificates or (token and (security.tls or not shown))
    if security.authenticates and authenticates:
        return
    if security.authenticates:
        why = (
            "take the token in plain text"
            if shown
            else "accept unauthenticated clients: its protocol has no tokens"
        )
        raise SecurityError(
            f"{where} would {why}",
            hint="require certificates (TRANSFER_TLS_CA, TRANSFER_TLS_CLIENTS=certificate), leave it on "
            "127.0.0.1, or accept connections without authentication: TRANSFER_UNAUTHENTICATED=allow",
        )
    raise SecurityError(f"{where} would accept connections without authentication", hint=HINT)


def check_passwords(host: str, where: str, security: Security) -> None:
    """For an endpoint that peers send passwords to, which only TLS encrypts. Raises SecurityError."""
    if not (security.unauthenticated or security.tls or is_loopback(host)):
        raise SecurityError(
            f"{where} would take passwords in plain text",
            hint="use CURVE, or TLS (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY, TRANSFER_TLS_CA) on both sides; or "
            "accept that: TRANSFER_UNAUTHENTICATED=allow",
        )
