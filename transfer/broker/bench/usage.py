"""What a process has used so far: from `/proc`, from its own words, or from the metrics it serves."""

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
    """Each is None where it cannot be seen.

    cpu: user and system seconds. resident: bytes of memory now; peak: at most. blocks: that Python's
    allocator has given out, and not got back. allocations: how often it was asked for one.
    """

    cpu: float | None = None
    resident: int | None = None
    peak: int | None = None
    blocks: int | None = None
    allocations: int | None = None


def count_allocations() -> None:
    """From now on `of_this_process` knows them, where the compiled core is. Each costs some ns more."""
    if _counter is not None:
        _counter.count_allocations()


def of_this_process() -> Usage:
    """Of the process that asks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seen = of_process(os.getpid())
    asked = None if _counter is None else _counter.allocations()
    cpu = used.ru_utime + used.ru_stime
    return Usage(cpu, seen.resident, seen.peak, sys.getallocatedblocks(), asked)


def forget_peak() -> None:
    """From now on the peak of this process is that of what comes, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def of_process(pid: int) -> Usage:
    """Of another process of this machine, to a hundredth of a second. Raises UsageError without one."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
        status = (folder / "status").read_text()
    except OSError as error:
        raise UsageError(f"process {pid} cannot be looked at: {error.strerror}") from error
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    peak = int(found[1]) * 1024 if found else None
    return Usage((int(fields[11]) + int(fields[12])) / _TICK, pages * _PAGE, peak)


def of_metrics(text: str) -> Usage:
    """Of a process that serves Prometheus' metrics, as far as they have it."""
    found = {name: float(value) for name, value in _SAMPLE.findall(text)}
    resident = found.get("process_resident_memory_bytes")
    return Usage(found.get("process_cpu_seconds_total"), None if resident is None else int(resident))
