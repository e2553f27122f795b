"""Recognizes peers of other protocols by their first bytes, and names the protocol in the error."""

from __future__ import annotations

from transfer.transports.errors import HandshakeError

#: first bytes -> (the peer's protocol, the hint). ZeroMQ begins with 0xFF, a length of eight bytes, 0x7F.
_KNOWN = (
    (
        b"\xff\0\0\0\0\0\0",
        "the peer speaks ZeroMQ's own protocol (pyzmq, libzmq)",
        "both sides have to use this library: `import transfer.zmq as zmq` there; docs/zmq-compat.md",
    ),
    (
        b"\x16\x03",
        "the peer speaks TLS, and this side has no certificate",
        "both sides need TLS (TRANSFER_TLS_CERT, TRANSFER_TLS_KEY), or neither",
    ),
    (
        b"\x15\x03",
        "the peer speaks TLS, and this side does not",
        "both sides need TLS (TRANSFER_TLS_CA here), or neither",
    ),
    *(
        (begin, "the peer speaks HTTP", "the host and port are those of another program")
        for begin in (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"CONNECT ", b"OPTIONS ", b"HTTP/", b"PRI * HTTP")
    ),
    (b"SSH-", "the peer speaks SSH", "the host and port are those of another program"),
    (b"*1\r\n$", "the peer speaks Redis' protocol", "the host and port are those of another program"),
    (b"-ERR", "the peer speaks Redis' protocol", "the host and port are those of another program"),
)


def foreign_protocol_error(begin: bytes) -> HandshakeError:
    """The error for a peer whose first bytes, as far as they have arrived, do not begin a frame."""
    for first, who, hint in _KNOWN:
        if begin.startswith(first) or first.startswith(begin):  # some may be missing
            return HandshakeError("magic", who, hint=hint)
    return HandshakeError(
        "magic",
        "the first bytes are not those of a frame",
        hint="is a peer of this library at the other end? check host and port",
    )
