"""Reads from the first bytes of a TLS client which protocols it offers (ALPN). Pure.

They are not encrypted, so a port of several protocols can choose the one for a connection before it takes any
byte. The result is not trusted: TLS itself decides after the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from transfer.transports.core.first_record import HEAD, MESSAGE_HEAD, record_size

_ALPN = 16
#: the most extensions and protocol names that are read: clients send some 20 and 3
_MOST = 64


class ClientOffer(NamedTuple):
    """protocols: as offered, best first; None: not known yet. foreign: this is no TLS. wanted: how many bytes
    are needed to know."""

    protocols: tuple[bytes, ...] | None
    foreign: bool = False
    wanted: int = 0


_FOREIGN = ClientOffer(None, True)


class _Broken(ValueError):
    """A length that does not fit, or more entries than are read."""


class _Cursor:
    """Takes bytes off the front. Raises _Broken where there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, nbytes: int) -> bytes:
        end = self._at + nbytes
        if end > len(self._data):
            raise _Broken
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "big")

    def vector(self, nbytes: int) -> bytes:
        """A byte string with its length, of `nbytes` bytes, before it."""
        return self.take(self.number(nbytes))

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def entries(self) -> Iterator[int]:
        """Yields while bytes are left. Raises _Broken beyond _MOST."""
        for number in range(_MOST):
            if not self.left:
                return
            yield number
        if self.left:
            raise _Broken


def offered(first: bytes) -> ClientOffer:
    """The protocols in the first bytes of a connection."""
    size = record_size(first)
    if not size:
        return _FOREIGN
    if len(first) < size:
        return ClientOffer(None, wanted=size)
    try:
        return ClientOffer(_protocols(_Cursor(first[HEAD + MESSAGE_HEAD : size])))
    except _Broken:
        return _FOREIGN


def _protocols(hello: _Cursor) -> tuple[bytes, ...]:
    """The protocols of a ClientHello without its header. Raises _Broken."""
    hello.take(2 + 32)  # its version, which is no longer used, and its random bytes
    if len(hello.vector(1)) > 32:  # session id
        raise _Broken
    ciphers = hello.vector(2)
    if not ciphers or len(ciphers) % 2 or not hello.vector(1):
        raise _Broken
    if not hello.left:
        return ()
    extensions = _Cursor(hello.vector(2))
    if hello.left:
        raise _Broken
    found: tuple[bytes, ...] = ()
    for _ in extensions.entries():
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _ALPN:
            if found:
                raise _Broken
            found = _names(_Cursor(content))
    return found


def _names(content: _Cursor) -> tuple[bytes, ...]:
    listed = _Cursor(content.vector(2))
    found: list[bytes] = []
    for _ in listed.entries():
        found.append(listed.vector(1))
    if content.left or not found or not all(found):
        raise _Broken
    return tuple(found)
