"""Connections between two programs of one machine, whose bytes need not be spread over time."""

from __future__ import annotations

import socket

#: what every Linux has, and any program may ask for
_PLAIN = b"reno"


def unpace(connection: socket.socket) -> None:
    """Sends as fast as the other side reads, if that is on this machine; else nothing is changed.

    Where a congestion control that paces (bbr) is the system's default, each 64 KiB wait for a timer, on
    loopback too: a third to a half of what the sender's processor does for large messages.
    """
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, option, _PLAIN)
    except OSError:
        return  # it has ended already, or the system wants its own: slower, not wrong
