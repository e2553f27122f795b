"""The names of peers of abtp's ROUTER. libzmq gets a unique name for each connection.

With equal identities it would have to replace the older connection, and keep that one's unread messages and
its descriptor for ever.
"""

from __future__ import annotations

from itertools import count
from typing import Generic, TypeVar

C = TypeVar("C")

#: bytes of the number after an identity, which makes the name unique
_NUMBER = 8
#: prefix of the number of a peer without identity; no identity begins with it
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
        """Returns the bytes of messages in libzmq's queue for this peer. The handshake and PONGs are
        forwarded but were never sent: they must not make room for later messages."""
        self.forwarded = min(self.forwarded, self.sent)
        return self.sent - self.forwarded


class NameTable(Generic[C]):
    """The newest connection of each identity; a peer without identity is known by its name."""

    def __init__(self) -> None:
        self._newest: dict[bytes, NamedConnection[C]] = {}
        self._numbers = count()

    def enter(self, identity: bytes, connection: C) -> tuple[NamedConnection[C], C | None]:
        """Adds a connection. Returns it with its name, and the earlier connection of the same identity, or
        None."""
        name = (identity or _NO_IDENTITY) + next(self._numbers).to_bytes(_NUMBER, "big")
        before = self._newest.get(self.identity(name))
        self._newest[self.identity(name)] = named = NamedConnection(name, connection)
        return named, before.connection if before is not None else None

    def leave(self, named: NamedConnection[C]) -> None:
        """Removes a connection that has ended."""
        identity = self.identity(named.name)
        if self._newest.get(identity) is named:
            del self._newest[identity]

    def newest(self, identity: bytes) -> NamedConnection[C] | None:
        """Returns the newest connection of an identity, or None."""
        return self._newest.get(identity)

    @staticmethod
    def identity(name: bytes) -> bytes:
        """Returns the identity of the peer with this name."""
        return name if name.startswith(_NO_IDENTITY) else name[:-_NUMBER]
