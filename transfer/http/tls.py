"""Certificates and tokens for HTTP that this process serves, by Python's own `ssl`."""

from __future__ import annotations

import hmac
import ssl
from typing import TYPE_CHECKING, cast

from transfer.transports.core import pure
from transfer.transports.security.credentials import Credentials

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: what HTTP is called by ALPN
PROTOCOL = "http/1.1"


class Https:
    """What is shown, and asked for; read again when the files change. Thread-safe.

    Raises SecurityError if they cannot be used, also where there is TLS without a certificate to show.
    """

    def __init__(self, security: Security) -> None:
        self.security = security
        self._credentials = Credentials(security, pure)
        if security.tls:
            self.context()

    def context(self, *, required: bool = False) -> ssl.SSLContext:
        """For a new connection. required: nobody is heard without a certificate, if they are asked for."""
        asks = self.security.asks_certificates
        clients = ("required" if required else "optional") if asks else "none"
        made = self._credentials.context(server=True, protocols=(PROTOCOL,), clients=clients)
        return cast("pure.TlsContext", made).context

    def has_token(self, shown: str | None) -> bool:
        """Whether this is one of the tokens. Over plain HTTP none is: whoever shows it shows it to all."""
        if shown is None or not self.security.tls:
            return False
        return is_one_of(shown, self._credentials.tokens())


def is_one_of(shown: str, tokens: tuple[bytes, ...]) -> bool:
    """It takes equally long whichever it is."""
    given = shown.encode(errors="replace")
    found = [hmac.compare_digest(given, token) for token in tokens]
    return any(found)


def bearer(header: str | None) -> str | None:
    """What `Authorization: Bearer` shows."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
