"""The first bytes of a TLS client: one record that holds its whole ClientHello. Pure.

OpenSSL allocates the size that a ClientHello announces, up to 128 KiB, when its first nine bytes are there. A
ClientHello in records of one byte each costs far more to parse than to send. Clients send one record: with
large keys (RFC 8446, 4.2.8; ML-KEM) it has some 2 KiB. The compiled core has the same rule in native/tls.pyx.
"""

from __future__ import annotations

#: bytes of the header of a record, and of a handshake message
HEAD, MESSAGE_HEAD = 5, 4
#: the most bytes of a ClientHello: the content of one record (RFC 8446, 5.1)
LARGEST_HELLO = 1 << 14
_HANDSHAKE, _CLIENT_HELLO = 22, 1


def record_size(first: bytes | bytearray) -> int:
    """Bytes of the record that begins here, with its header, as far as is known: more than are there if more
    are needed. 0: this is no ClientHello in one record."""
    if any(byte != mark for byte, mark in zip(first, (_HANDSHAKE, 3), strict=False)):
        return 0
    if len(first) < HEAD:
        return HEAD + MESSAGE_HEAD
    size = int.from_bytes(first[3:HEAD], "big")
    if not MESSAGE_HEAD < size <= LARGEST_HELLO:
        return 0
    if len(first) > HEAD and first[HEAD] != _CLIENT_HELLO:
        return 0
    if len(first) < HEAD + MESSAGE_HEAD:
        return HEAD + MESSAGE_HEAD
    message = int.from_bytes(first[HEAD + 1 : HEAD + MESSAGE_HEAD], "big")
    return HEAD + size if message == size - MESSAGE_HEAD else 0
