"""Ports for programs that have to be told one before they run."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path


def free_port() -> int:
    """A free one on loopback with a free neighbour, since a spool's rows come in there.

    Below those that the system gives to connections: one of them could be given away before the program runs.
    Each worker (tests/workers.py) has a range of its own, for the same reason.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    turn = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    first = max(1024, lowest - 12_000)
    size = (lowest - 1 - first) // workers
    for _ in range(1000):
        port = first + turn * size + random.randrange(size - 1)
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 1)):
                return port
        except OSError:
            continue
    raise RuntimeError("no two neighbouring ports are free")


def free_ports(count: int) -> list[int]:
    """So many different ones, of which none is another's neighbour."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if all(abs(port - other) > 1 for other in found):
            found.append(port)
    return found
