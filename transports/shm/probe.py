"""Whether this machine supports the shared memory transport."""

from __future__ import annotations

import os
import socket

from transfer.transports.config import local_enabled
from transfer.transports.handshake.identity import host_id
from transfer.transports.probe import Probe


def probe() -> Probe:
    """Checks for memfd, sealing, abstract Unix sockets, and the switch TRANSFER_LOCAL."""
    if not local_enabled():
        return Probe(False, "switched off by TRANSFER_LOCAL=off", "switched_off", "unset TRANSFER_LOCAL")
    if not hasattr(os, "memfd_create") or not hasattr(socket, "SO_PEERCRED"):
        return Probe(False, "this system has no memfd or no Unix sockets with credentials", "system")
    if not host_id():
        return Probe(False, "/proc does not have the boot id or the network namespace", "no_host_id")
    return Probe(True)
