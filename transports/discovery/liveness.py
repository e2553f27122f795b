"""Sees that a host has vanished, of which no packet tells: its power or its cable is gone.

The kernel would go on sending for a quarter of an hour. What it knows is asked here: whether the other
side's kernel has answered lately. That is so also while its program is in a long step and reads nothing, so
nobody is taken for dead for being slow.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

#: milliseconds without any answer
SILENT = 1500
# struct tcp_info begins with eight bytes, of which the third and fourth are retransmissions and probes that
# were not answered, and goes on with numbers of four; the thirteenth is the age of the last answer in ms.
_INFO = struct.Struct("=BBBBBBBB13I")
_RETRANSMITS, _PROBES, _LAST_ANSWER = 2, 3, 20
#: unanswered retransmissions from which on the peer is doubted: they come after 0.2, 0.6, 1.4 s
_DOUBTED = 2


def probe(fd: int) -> None:
    """Has the kernel ask an idle peer about once a second. Not for descriptors whose owner has asked for
    keep-alive by himself. What is no TCP connection stays as it is."""
    with _borrowed(fd) as connection:
        if connection is None or connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Many probes, so that it is not the kernel that ends the connection: see `answers`.
        for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 60)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def answers(fd: int) -> bool:
    """Whether the peer's kernel has answered lately, as far as ours knows. True for what is no TCP
    connection: its end is told."""
    with _borrowed(fd) as connection:
        if connection is None:
            return True
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:  # its end is being told at this moment
            return True
    return len(told) < _INFO.size or not is_silent(_INFO.unpack(told))


def is_silent(told: tuple[int, ...]) -> bool:
    """Pure: of the first fields of struct tcp_info."""
    unanswered = told[_PROBES] >= 1 or told[_RETRANSMITS] >= _DOUBTED
    return unanswered and told[_LAST_ANSWER] > SILENT


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket | None]:
    """A socket object over somebody else's descriptor; None if it is no TCP connection."""
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
