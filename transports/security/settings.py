"""The credentials of a process, and what it requires of its peers. Pure: other modules read the files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from transfer.transports.arguments import text, whole, wrong
from transfer.transports.errors import ArgumentError, SecurityError
from transfer.transports.security.strength import is_strong

#: what a client has to authenticate with
CLIENTS = ("certificate", "token")
#: where data is encrypted: on TCP, or everywhere, which allows TCP only
ENCRYPT = ("tcp", "all")
#: how to make a token that cannot be guessed
MAKE_TOKEN = "make one by chance: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class Security:
    """All settings. Without any, nothing is encrypted and clients are not authenticated.

    certificate, key: PEM files of this side; a listener needs them for TLS. authority: PEM file of the
    authorities that sign the peers' certificates. clients: "certificate" (mutual TLS) or "token"; "": the
    first if there is an authority. server_name: the name in the certificates of servers, instead of their
    endpoint's host. token: a shared secret, or token_file: a file with one a line: the first is for our
    proofs, and peers may prove any, so that it can be changed without a pause. unauthenticated: accept
    connections without authentication beyond loopback. tokenless: protocols without tokens may listen on this
    machine, and connect, although a token is set. encrypt: "all": disables rdma and ucx, which do not
    encrypt. max_connections, max_unauthenticated: limits of one bound endpoint; the latter of peers that have
    not authenticated yet.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    clients: str = ""
    server_name: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    unauthenticated: bool = False
    tokenless: bool = False
    encrypt: str = "tcp"
    max_connections: int = 100_000
    max_unauthenticated: int = 4096

    def __post_init__(self) -> None:
        self._check_kinds()
        name = self.server_name
        if name.startswith(".") or not name.isprintable() or " " in name:
            raise SecurityError(f"no certificate names {name!r}", hint="a host, or its number")
        if bool(self.certificate) != bool(self.key):
            raise SecurityError("a certificate and its key go together", hint="give both files, or neither")
        if self.clients and self.clients not in CLIENTS:
            raise SecurityError(f"clients cannot show {self.clients!r}", hint="one of " + ", ".join(CLIENTS))
        if self.encrypt not in ENCRYPT:
            raise SecurityError(f"encrypt cannot be {self.encrypt!r}", hint="one of " + ", ".join(ENCRYPT))
        if self.clients == "certificate" and not self.authority:
            raise SecurityError(
                "clients need certificates, and no authority is set that signs them",
                hint="name its file (TRANSFER_TLS_CA)",
            )
        if self.clients == "token" and not self.has_token:
            raise SecurityError("clients need a token, and none is set", hint="TRANSFER_TOKEN_FILE")
        if self.encrypt == "all" and not self.tls:
            raise SecurityError(
                "everything has to be encrypted, and there is no TLS", hint="TRANSFER_TLS_CA and more"
            )
        if self.token and self.token_file:
            raise SecurityError("a token and a file of tokens", hint="give one of them")
        if self.token:
            check_token(self.token, "the token")

    def _check_kinds(self) -> None:
        """Raises ArgumentError, and converts a Path to text. No error contains the token."""
        for name in ("certificate", "key", "authority", "token_file"):
            try:
                object.__setattr__(self, name, text(os.fspath(getattr(self, name)), name))
            except TypeError:
                raise wrong(name, getattr(self, name), "the path of a file") from None
        for name in ("clients", "server_name", "encrypt"):
            text(getattr(self, name), name)
        if not isinstance(self.token, str):
            raise ArgumentError("a token is text", hint=MAKE_TOKEN)
        for name in ("unauthenticated", "tokenless"):
            if not isinstance(getattr(self, name), bool):
                raise wrong(name, getattr(self, name), "True or False")
        for name in ("max_connections", "max_unauthenticated"):
            whole(getattr(self, name), name, 1)

    @property
    def tls(self) -> bool:
        """Every TCP connection is TLS, whichever side connected."""
        return bool(self.certificate or self.authority)

    @property
    def has_token(self) -> bool:
        return bool(self.token or self.token_file)

    @property
    def asks_certificates(self) -> bool:
        """Clients need a certificate."""
        return bool(self.authority) and self.clients != "token"

    @property
    def authenticates(self) -> bool:
        """Only authenticated clients are accepted."""
        return self.has_token or (self.tls and self.asks_certificates)

    @property
    def any(self) -> bool:
        return self.tls or self.has_token


def check_token(token: str, what: str) -> None:
    """Raises SecurityError, which does not contain the token."""
    why = "has letters that cannot be printed" if not token.isprintable() else "can be guessed"
    if not token.isprintable() or not is_strong(token):
        raise SecurityError(f"{what} {why}", hint=MAKE_TOKEN)


def tokens_of(text: str, what: str) -> tuple[str, ...]:
    """The tokens in a file's text, one a line. Raises SecurityError."""
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise SecurityError(f"{what} has no token in it", hint="one a line; this side proves the first")
    for token in found:
        check_token(token, f"a token in {what}")
    return found
