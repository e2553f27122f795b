"""The identities of abtp's peers. libzmq knows each connection by a name of its own, so that it never has to
part with one of two that have the same: what the older one had in its pipe would stay there for ever, and so
would its descriptor."""

from __future__ import annotations

from itertools import count
from typing import Generic, TypeVar

C = TypeVar("C")

#: bytes behind an identity that make a name of it
_NUMBER = 8


class Names(Generic[C]):
    """By identity, the newest connection. What libzmq itself has named begins with a zero, and stays."""

    def __init__(self) -> None:
        self._newest: dict[bytes, tuple[bytes, C]] = {}
        self._numbers = count()

    def enter(self, identity: bytes, connection: C) -> tuple[bytes, C | None]:
        """(the name of the connection, the one that had the identity before)."""
        name = identity + next(self._numbers).to_bytes(_NUMBER, "big")
        before = self._newest.get(identity)
        self._newest[identity] = name, connection
        return name, before[1] if before is not None else None

    def leave(self, name: bytes) -> None:
        """The connection has ended."""
        identity = self.identity(name)
        if self.name(identity) == name:
            del self._newest[identity]

    def name(self, identity: bytes) -> bytes:
        """Of the newest connection; of one that is not there, the identity."""
        newest = self._newest.get(identity)
        return newest[0] if newest is not None else identity

    @staticmethod
    def identity(name: bytes) -> bytes:
        """Of the peer that has this name."""
        return name[:-_NUMBER] if name[0] else name
