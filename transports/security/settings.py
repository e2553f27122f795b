"""What a process shows of itself and asks of its peers. Pure: files are named here and read elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from transfer.transports.arguments import text, whole, wrong
from transfer.transports.errors import ArgumentError, SecurityError
from transfer.transports.security.strength import is_strong

#: what a peer that connects has to show
CLIENTS = ("certificate", "token")
#: where data is encrypted: on TCP, or everywhere, and then on TCP alone
ENCRYPT = ("tcp", "all")
#: what makes a token that nobody guesses
MAKE_TOKEN = "make one by chance: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class Security:
    """All of it. With none of it nothing is encrypted and nobody is asked who he is.

    certificate, key: PEM files of this side; who listens needs them for TLS. authority: PEM file of those
    who sign the peers' certificates. clients: "certificate" (mutual TLS) or "token"; "": the first if there
    is an authority. server_name: what the certificates of peers that are connected to have to name, instead
    of their endpoint's host. token: a shared secret, or token_file: where it stands, one a line: the first
    is shown, each is taken, so that it can be changed without a pause. unauthenticated: strangers may come
    in beyond loopback, said in words. tokenless: what knows no token listens on this machine, and
    connects, although there is one. encrypt: "all": what goes by rdma or ucx is not encrypted, so
    they are not used. connections, unfinished: at once, of one bound endpoint; the latter of peers that did
    not show yet who they are.
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
    connections: int = 100_000
    unfinished: int = 4096

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
                "clients are to show certificates, and no authority is named that signs them",
                hint="name its file (TRANSFER_TLS_CA)",
            )
        if self.clients == "token" and not self.has_token:
            raise SecurityError("clients are to show a token, and there is none", hint="TRANSFER_TOKEN_FILE")
        if self.encrypt == "all" and not self.tls:
            raise SecurityError(
                "all is to be encrypted, and there is no TLS", hint="TRANSFER_TLS_CA and more"
            )
        if self.token and self.token_file:
            raise SecurityError("a token and a file of tokens", hint="give one of them")
        if self.token:
            check_token(self.token, "the token")

    def _check_kinds(self) -> None:
        """Raises ArgumentError, and makes text of a Path. The token is in no error."""
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
        for name in ("connections", "unfinished"):
            whole(getattr(self, name), name, 1)

    @property
    def tls(self) -> bool:
        """Every TCP connection is TLS, whichever side began it."""
        return bool(self.certificate or self.authority)

    @property
    def has_token(self) -> bool:
        return bool(self.token or self.token_file)

    @property
    def asks_certificates(self) -> bool:
        """Who connects has to show one."""
        return bool(self.authority) and self.clients != "token"

    @property
    def authenticates(self) -> bool:
        """Nobody comes in who does not show who he is."""
        return self.has_token or (self.tls and self.asks_certificates)

    @property
    def any(self) -> bool:
        return self.tls or self.has_token


def check_token(token: str, what: str) -> None:
    """Raises SecurityError; the token itself is in no error."""
    why = "has letters that cannot be printed" if not token.isprintable() else "can be guessed"
    if not token.isprintable() or not is_strong(token):
        raise SecurityError(f"{what} {why}", hint=MAKE_TOKEN)


def tokens_of(text: str, what: str) -> tuple[str, ...]:
    """Those of a file's text, one a line. Raises SecurityError."""
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise SecurityError(f"{what} has no token in it", hint="one a line; the first is shown to peers")
    for token in found:
        check_token(token, f"a token in {what}")
    return found
