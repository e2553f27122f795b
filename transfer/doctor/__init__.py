"""Checks what works on this machine, with hints for what does not. `transfer doctor` shows it.

A probe that fails is a finding, never an error. `throughput` measures the transports between two machines.

fabric      checks the network below rdma: links, GID, packet size, lost packets, flow control, GPU memory
finding     the doctor's findings, one for each check
machine     checks the machine: Python, the core, the kernel's limits, libraries
security    checks the certificates and tokens of the environment, and how long they are valid
throughput  measures the transports between two machines
transports  checks the transports: which work, which are missing, which one the environment selects
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from transfer.doctor.finding import Check, as_data, healthy

__all__ = ["Check", "as_data", "examine", "healthy"]


def examine() -> list[Check]:
    """Returns all findings. It takes a few seconds at most, and opens and closes sockets."""
    from transfer.doctor import fabric, machine, security, transports

    probes: tuple[Callable[[], Iterable[Check]], ...] = (
        machine.base,
        transports.self_tests,
        machine.limits,
        transports.network,
        transports.devices,
        fabric.fabric,
        machine.libraries,
        transports.protocol,
        security.security,
    )
    return [check for run in probes for check in run()]
