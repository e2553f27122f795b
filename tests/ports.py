"""Ports for programs that have to be told one before they run."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """A free one on loopback with a free neighbour, since a spool's rows come in there.

    Below those that the system gives to connections: one of them could be given away before the program runs.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(max(1024, lowest - 12_000), lowest - 1)
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue
    raise RuntimeError("no two neighbouring ports are free")
