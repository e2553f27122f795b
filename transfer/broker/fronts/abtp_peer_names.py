"""The peers of abtp's ROUTER. libzmq knows each connection by a name of its own, so that it never has to
part with one of two that have the same identity: what the older one had in its pipe would stay there for
ever, and so would its descriptor."""

from __future__ import annotations

from itertools import count
from typing import Generic, TypeVar

C = TypeVar("C")

#: bytes behind an identity that make a name of it
_NUMBER = 8
#: what stands before the number of a peer that has no identity: none begins with it
_NO_IDENTITY = b"\0"


class NamedConnection(Generic[C]):
    """A peer's connection. sent: bytes that the broker gave to libzmq for this peer. forwarded: bytes that
    libzmq wrote to the connection."""

    __slots__ = ("connection", "forwarded", "name", "sent")

    def __init__(self, name: bytes, connection: C) -> None:
        self.name = name
        self.connection = connection
        self.sent = self.forwarded = 0

    def queued_bytes(self) -> int:
        """Bytes of messages in libzmq's queue for this peer. The handshake and PONGs are forwarded too, but
        were never sent: they must not make room for later messages."""
        self.forwarded = min(self.forwarded, self.sent)
        return self.sent - self.forwarded


class Names(Generic[C]):
    """By identity, the newest connection; one without an identity has its name for that."""

    def __init__(self) -> None:
        self._newest: dict[bytes, NamedConnection[C]] = {}
        self._numbers = count()

    def enter(self, identity: bytes, connection: C) -> tuple[NamedConnection[C], C | None]:
        """(the connection with its name, the one that had the identity before)."""
        name = (identity or _NO_IDENTITY) + next(self._numbers).to_bytes(_NUMBER, "big")
        before = self._newest.get(self.identity(name))
        self._newest[self.identity(name)] = named = NamedConnection(name, connection)
        return named, before.connection if before is not None else None

    def leave(self, named: NamedConnection[C]) -> None:
        """The connection has ended."""
        identity = self.identity(named.name)
        if self._newest.get(identity) is named:
            del self._newest[identity]

    def newest(self, identity: bytes) -> NamedConnection[C] | None:
        """The newest connection; None: there is none."""
        return self._newest.get(identity)

    @staticmethod
    def identity(name: bytes) -> bytes:
        """Of the peer that has this name."""
        return name if name.startswith(_NO_IDENTITY) else name[:-_NUMBER]
