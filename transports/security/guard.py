"""What may be listened on: beyond this machine only where those who come are asked who they are."""

from __future__ import annotations

import ipaddress
import socket

from transfer.transports.errors import SecurityError
from transfer.transports.security.settings import Security

HINT = (
    "give it certificates (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY, TRANSFER_TLS_CA) or a token "
    "(TRANSFER_TOKEN_FILE); or say that strangers may come in: TRANSFER_UNAUTHENTICATED=allow"
)


def is_loopback(host: str) -> bool:
    """Whether this machine alone can reach what listens there. host: a number, in brackets or not, or
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
    """Whether a connection is to or from a number of loopback."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        ends = connection.getsockname(), connection.getpeername()
    except OSError:  # it has ended already
        return True
    return any(is_loopback(host) for host, *_ in ends)


def skips_token(security: Security) -> bool:
    """Whether a protocol that knows no token would let in those who have none, where there is one."""
    allowed = security.unauthenticated or security.tokenless
    return security.has_token and not security.asks_certificates and not allowed


def is_private(endpoint: str) -> bool:
    """Whether this user's processes alone get there: by a socket that is a file, with its mode."""
    return endpoint.startswith("ipc://") and not endpoint.startswith("ipc://@")


def check_connecting(peer: str, security: Security) -> None:
    """For clients whose protocol knows no token: where there is one, any user of the peer's host may have its
    port, since the broker leaves it free, and only TLS shows who answers. Raises SecurityError."""
    if security.has_token and not security.tls and not (security.unauthenticated or security.tokenless):
        raise SecurityError(
            f"{peer} cannot show that it knows the token: the protocol knows no token",
            hint="give this side certificates (TRANSFER_TLS_CA), use the broker's own protocol, or say that "
            "whatever answers gets the messages: TRANSFER_TOKENLESS=allow",
        )


def check_listening(
    host: str, where: str, security: Security, *, token: bool = True, shown: bool = False
) -> None:
    """Raises SecurityError. where: the endpoint, for people. token: its protocol knows one. shown: it shows
    it instead of proving it, which only TLS hides."""
    if security.unauthenticated or is_loopback(host):
        return
    asked = security.asks_certificates or (token and (security.tls or not shown))
    if security.authenticates and asked:
        return
    if security.authenticates:
        why = "take the token in plain text" if shown else "let strangers in: its protocol knows no token"
        raise SecurityError(
            f"{where} would {why}",
            hint="ask for certificates (TRANSFER_TLS_CA, TRANSFER_TLS_CLIENTS=certificate), leave it on "
            "127.0.0.1, or say that strangers may come in: TRANSFER_UNAUTHENTICATED=allow",
        )
    raise SecurityError(f"{where} would let strangers in: nobody is asked who he is", hint=HINT)
