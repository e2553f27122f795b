"""Certificates and tokens for this process's HTTP servers, by Python's `ssl`."""

from __future__ import annotations

import hmac
import ssl
from typing import TYPE_CHECKING, cast

from transfer.transports.core import python_tls
from transfer.transports.security.credentials import Credentials

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: the name of HTTP in ALPN
PROTOCOL = "http/1.1"


class Https:
    """The server's certificate, and clients' certificates and tokens.

    It reads changed files again. Thread-safe.

    Raises SecurityError for unusable files, also if there is TLS without a certificate of the server.
    """

    def __init__(self, security: Security) -> None:
        self.security = security
        self._credentials = Credentials(security, python_tls)
        if security.tls:
            self.context()

    def context(self, *, required: bool = False) -> ssl.SSLContext:
        """Returns the context of a new connection.

        required: if clients have to show certificates, the handshake fails without one.
        """
        certificates = self.security.asks_certificates
        clients = ("required" if required else "optional") if certificates else "none"
        made = self._credentials.context(server=True, protocols=(PROTOCOL,), clients=clients)
        return cast("python_tls.TlsContext", made).context

    def has_token(self, given: str | None) -> bool:
        """Whether this is one of the tokens. Never over plain HTTP, where every listener could read it."""
        if given is None or not self.security.tls:
            return False
        return is_one_of(given, self._credentials.tokens())


def is_one_of(given: str, tokens: tuple[bytes, ...]) -> bool:
    """Whether it is one of the tokens, in constant time."""
    data = given.encode(errors="replace")
    found = [hmac.compare_digest(data, token) for token in tokens]
    return any(found)


def bearer(header: str | None) -> str | None:
    """Returns the token of `Authorization: Bearer`."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
