"""Reads the resources that a process has used: from `/proc`, from within, or from its metrics."""

from __future__ import annotations

import importlib
import os
import re
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.transports.errors import UsageError

_counter: Any = None
with suppress(ImportError):  # the core was not built
    _counter = importlib.import_module("transfer.transports.core.native.allocations")

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE = re.compile(r"^(process_\w+)\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Usage:
    """The used resources; None where they are unknown.

    cpu: user and system seconds. resident: bytes of memory now; peak: at most. blocks: allocated blocks of
    Python's allocator. allocations: number of its allocations so far.
    """

    cpu: float | None = None
    resident: int | None = None
    peak: int | None = None
    blocks: int | None = None
    allocations: int | None = None


def count_allocations() -> None:
    """Counts allocations from now on, if the compiled core is there. Each takes some ns longer then."""
    if _counter is not None:
        _counter.count_allocations()


def of_this_process() -> Usage:
    """Returns the usage of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seen = of_process(os.getpid())
    count = None if _counter is None else _counter.allocations()
    cpu = used.ru_utime + used.ru_stime
    return Usage(cpu, seen.resident, seen.peak, sys.getallocatedblocks(), count)


def forget_peak() -> None:
    """Resets the peak of this process, if the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def of_process(pid: int) -> Usage:
    """Returns the usage of a process of this machine, to a hundredth of a second. Raises UsageError."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
        status = (folder / "status").read_text()
    except OSError as error:
        raise UsageError(f"process {pid} cannot be inspected: {error.strerror}") from error
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    peak = int(found[1]) * 1024 if found else None
    return Usage((int(fields[11]) + int(fields[12])) / _TICK, pages * _PAGE, peak)


def of_metrics(text: str) -> Usage:
    """Returns the usage of a process from its Prometheus metrics, as far as they contain it."""
    found = {name: float(value) for name, value in _SAMPLE.findall(text)}
    resident = found.get("process_resident_memory_bytes")
    return Usage(found.get("process_cpu_seconds_total"), None if resident is None else int(resident))
