"""Disables pacing between two programs of one machine, whose packets need not be spread over time."""

from __future__ import annotations

import socket

#: the congestion control of every Linux, which any program may select
_PLAIN = b"reno"


def unpace(connection: socket.socket) -> None:
    """Sends as fast as the other side reads, if it is on this machine; else changes nothing.

    Where the system's default congestion control paces (bbr), every 64 KiB wait for a timer, on loopback too.
    That takes a third to a half of the sender's processor time for large messages.
    """
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, option, _PLAIN)
    except OSError:
        return  # it has ended, or the system refuses: slower, not wrong
