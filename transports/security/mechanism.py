"""How the two sides of an endpoint authenticate as in ZeroMQ: NULL, PLAIN or CURVE, and who decides. Pure.

The decision is that of an authenticator (ZeroMQ's RFC 27). It is asked while the connection is in its
handshake, and may answer later; until then the peer gets no message, and gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NULL, PLAIN, CURVE = "NULL", "PLAIN", "CURVE"
#: bytes of a key of CURVE
KEY = 32
#: the status of a peer that is accepted
OK = 200
#: statuses with which an authenticator refuses: for now, for good, by an error of its own
DENIALS = frozenset({300, 400, 500})
#: the text of a refusal where there is no authenticator, and one is required
NO_AUTHENTICATOR = (
    "no authenticator is there to ask: start one in this context (ThreadAuthenticator), which binds "
    "inproc://zeromq.zap.01"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What the authenticator is asked. address: of the peer, without its port."""

    mechanism: str
    address: str
    credentials: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: OK, or one of DENIALS. text: for the log of this side. properties: of the peer, by name."""

    status: int
    text: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


#: called once, in any thread. None: there is no authenticator
OnVerdict = Callable[[Verdict | None], object]
#: asks the authenticator; the result ends the question, and `OnVerdict` is not called after that
Asks = Callable[[Question, OnVerdict], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One side's part.

    server: this side checks the credentials of the other, whichever connected. username, password: of a
    client of PLAIN. secret: this side's key of CURVE; server_key: the server's public key, at a client. asks:
    the authenticator; None: none is asked. required: without an authenticator no peer is accepted. core: has
    the keyed TLS of CURVE.
    """

    name: str = NULL
    server: bool = False
    username: bytes = field(default=b"", repr=False)
    password: bytes = field(default=b"", repr=False)
    secret: bytes = field(default=b"", repr=False)
    server_key: bytes = b""
    asks: Asks | None = field(default=None, repr=False)
    required: bool = False
    core: Any = field(default=None, repr=False)

    @property
    def word(self) -> str:
        """For hellos; "": NULL."""
        return "" if self.name == NULL else self.name.lower() + ("_server" if self.server else "")

    @property
    def encrypts(self) -> bool:
        return self.name == CURVE

    @property
    def approves(self) -> bool:
        """Whether this side decides about the peer once it has its credentials."""
        return self.server or (self.name == NULL and self.asks is not None)

    @property
    def is_client(self) -> bool:
        """Whether this side sends credentials, and begins the TLS of CURVE, whichever side connected."""
        return self.name != NULL and not self.server


#: NULL, and no authenticator is asked
NO_MECHANISM = Mechanism()


def no_mechanism(sock: Any, address: Any) -> Mechanism:
    """That of sockets without options of mechanisms."""
    return NO_MECHANISM


def counterpart(word: str) -> str:
    """The word of the other side's mechanism."""
    if not word:
        return ""
    return word.removesuffix("_server") if word.endswith("_server") else f"{word}_server"
