"""The process at the other end of a Unix socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple


class PeerCredentials(NamedTuple):
    """process: its id. user, group: as they were when it connected or listened."""

    process: int
    user: int
    group: int


_STRUCT = struct.Struct("3i")


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    """The credentials of the process that connected, or that listens; both ends can ask."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _STRUCT.size)
    return PeerCredentials(*_STRUCT.unpack(data))


def same_user(connection: socket.socket, user: int | None = None) -> bool:
    """Whether the other end of a Unix socket runs under this user; None: the one of this process."""
    return peer_credentials(connection).user == (os.geteuid() if user is None else user)


def peer_host(connection: socket.socket) -> str:
    """The address of the other end, without its port, as ZeroMQ's authenticators know it: of a Unix socket
    "localhost:user:group:process". "": the connection has ended."""
    try:
        if connection.family == socket.AF_UNIX:
            peer = peer_credentials(connection)
            return f"localhost:{peer.user}:{peer.group}:{peer.process}"
        host: str = connection.getpeername()[0]
    except OSError:
        return ""
    # A peer has one name, whether the listener's socket is of IPv4 or of both.
    return host.removeprefix("::ffff:") if "." in host else host
