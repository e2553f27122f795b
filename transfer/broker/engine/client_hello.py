"""Which protocols a TLS client offers (ALPN), read from the first bytes that it sends. Pure.

They are not encrypted, so a port that several protocols share knows whose a connection is before anything
of it was taken. Nothing here is believed: TLS itself decides with whoever gets the connection.
"""

from __future__ import annotations

from typing import NamedTuple

#: bytes of the records that a ClientHello may take, with their heads: it is some 2 KiB with large keys
MOST = 16 << 10

_RECORD, _HANDSHAKE = 5, 4  # bytes of their heads
_CONTENT, _CLIENT_HELLO = 22, 1
_LARGEST_RECORD = 1 << 14
_ALPN = 16


class Offer(NamedTuple):
    """protocols: as they were offered, best first; None: more bytes are needed. foreign: this is no TLS."""

    protocols: tuple[bytes, ...] | None
    foreign: bool = False


_MORE, _FOREIGN = Offer(None), Offer(None, True)


class _Broken(ValueError):
    """A length that does not fit."""


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
        """Bytes with their length, of so many bytes, before them."""
        return self.take(self.number(nbytes))

    @property
    def left(self) -> bool:
        return self._at < len(self._data)


def offered(first: bytes) -> Offer:
    """What the first bytes of a connection offer; of more than MOST bytes an answer is always known."""
    message, whole = _handshake(first)
    if message is None:
        return _FOREIGN
    if len(message) >= _HANDSHAKE:
        size = int.from_bytes(message[1:_HANDSHAKE], "big")
        if message[0] != _CLIENT_HELLO or size > MOST:
            return _FOREIGN
        if len(message) >= _HANDSHAKE + size:
            try:
                return Offer(_protocols(_Cursor(message[_HANDSHAKE : _HANDSHAKE + size])))
            except _Broken:
                return _FOREIGN
    elif message and message[0] != _CLIENT_HELLO:
        return _FOREIGN
    return _FOREIGN if whole or len(first) > MOST else _MORE


def _handshake(first: bytes) -> tuple[bytes | None, bool]:
    """What the records carry, as far as it is there; None: they are no records of a handshake. And whether no
    more of it can come."""
    message = b""
    at = 0
    while at < len(first):
        head = first[at : at + _RECORD]
        if head[0] != _CONTENT or (len(head) > 1 and head[1] != 3):
            # behind the ClientHello anything may stand
            return (message, True) if message else (None, True)
        if len(head) < _RECORD:
            break
        size = int.from_bytes(head[3:], "big")
        if not 0 < size <= _LARGEST_RECORD:
            return None, True
        at += _RECORD
        message += first[at : at + size]
        at += size
    return message, False


def _protocols(hello: _Cursor) -> tuple[bytes, ...]:
    """Of a ClientHello without its head. Raises _Broken."""
    hello.take(2 + 32)  # its version, which says nothing any more, and its random bytes
    if len(hello.vector(1)) > 32:  # of a session
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
    while extensions.left:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _ALPN:
            if found:
                raise _Broken
            found = _names(_Cursor(content))
    return found


def _names(content: _Cursor) -> tuple[bytes, ...]:
    listed = _Cursor(content.vector(2))
    found: list[bytes] = []
    while listed.left:
        found.append(listed.vector(1))
    if content.left or not found or not all(found):
        raise _Broken
    return tuple(found)
