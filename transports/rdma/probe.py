"""Whether this process can use RDMA, and the details for `transfer doctor`.

It checks /sys first: without a device there, libibverbs is not even loaded.
"""

from __future__ import annotations

import os
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transfer.transports.errors import DeviceError, OptionError
from transfer.transports.probe import Probe
from transfer.transports.rdma import device_selection, failures
from transfer.transports.rdma.driver import load

#: with less locked memory the first large payload would end its connection, in bytes
NEEDED = 64 << 20


def probe(system: Path = device_selection.SYSTEM) -> Probe:
    """Opens the selected device once and closes it again."""
    details: dict[str, Any] = {"devices": [device.name for device in device_selection.look(system)]}
    try:
        route = device_selection.choose_route(system=system)
        details["route"], details["why"] = str(route), route.why
        details["gid_index"], details["port"] = route.gid_index, route.port
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        details["memlock"] = "unlimited" if limit < 0 or failures.may_lock() else limit
        peermem = Path("/sys/module/nvidia_peermem").exists()
        details["peermem"] = "loaded" if peermem else "not loaded (only GPU memory needs it, or dma-buf)"
        if 0 <= limit < NEEDED and not failures.may_lock():
            return Probe(
                False,
                f"only {limit >> 10} KiB of memory may be locked, {NEEDED >> 20} MiB are needed",
                "memlock",
                "raise `ulimit -l` (LimitMEMLOCK=, --ulimit memlock=-1), or give CAP_IPC_LOCK",
                details=details,
            )
        driver = load()
        details["driver"] = f"{driver.name} {driver.version}"
        device = driver.open(route.device)
        try:
            seen = route.seen_by(device)
            details["mtu"], details["limits"] = seen.mtu, asdict(device.limits)
        finally:
            device.close()
    except DeviceError as error:
        return Probe(False, str(error).split("\n", 1)[0], error.reason, error.hint, details=details)
    except OptionError as error:
        return Probe(False, str(error).split("\n", 1)[0], "option", error.hint, details=details)
    return Probe(True, details=details)


def uverbs() -> list[str]:
    """The device files that a process needs, and whether this one may open them."""
    folder = Path("/dev/infiniband")
    names = sorted(folder.glob("uverbs*")) if folder.exists() else []
    return [f"{name}{'' if os.access(name, os.R_OK | os.W_OK) else ' (no permission)'}" for name in names]
