"""Detects a vanished host, of which no packet informs: it has lost power, or its cable is unplugged.

The kernel would retransmit for a quarter of an hour. This module reads from it whether the other side's
kernel has answered recently. A kernel answers also while its program is busy and reads nothing, so a slow
peer does not count as dead.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

#: milliseconds without any answer
SILENT = 1500
# struct tcp_info begins with eight bytes; the third and fourth count unanswered retransmissions and probes.
# Numbers of four bytes follow; the thirteenth is the age of the last answer in ms.
_INFO = struct.Struct("=BBBBBBBB13I")
_RETRANSMITS, _PROBES, _LAST_ANSWER = 2, 3, 20
#: unanswered retransmissions from which the peer is suspected: they come after 0.2, 0.6, 1.4 s
_DOUBTED = 2


def probe(fd: int) -> None:
    """Lets the kernel probe an idle peer about once a second. Not for descriptors whose owner sets keepalive
    options. Does nothing to a descriptor that is no TCP connection."""
    with _borrowed(fd) as connection:
        if connection is None or connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Many probes, so that the kernel does not end the connection: see `answers`.
        for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 60)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def answers(fd: int) -> bool:
    """Whether the peer's kernel has answered recently, as far as the local one knows. True for a descriptor
    that is no TCP connection: its end is reported."""
    with _borrowed(fd) as connection:
        if connection is None:
            return True
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:  # its end is being reported at this moment
            return True
    return len(info) < _INFO.size or not is_silent(_INFO.unpack(info))


def is_silent(info: tuple[int, ...]) -> bool:
    """Decides from the first fields of struct tcp_info. Pure."""
    unanswered = info[_PROBES] >= 1 or info[_RETRANSMITS] >= _DOUBTED
    return unanswered and info[_LAST_ANSWER] > SILENT


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket | None]:
    """A socket object over the caller's descriptor; None if it is no TCP connection."""
    if fd < 0 or not hasattr(socket, "TCP_INFO"):
        yield None
        return
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        yield None
        return
    try:
        tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        yield connection if tcp and connection.type == socket.SOCK_STREAM else None
    finally:
        connection.detach()
