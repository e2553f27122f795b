"""Describes the machine of the numbers."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import warnings
from pathlib import Path
from typing import Any

PACKAGES = (
    "tensor-transfer",
    "pyzmq",
    "pynng",
    "mooncake-transfer-engine-non-cuda",
    "torch",
    "numpy",
    "msgspec",
)


def describe() -> dict[str, Any]:
    """Returns the machine, the versions, and which core of `transfer` is in use."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "core": _core(),
        "revision": _revision(),
        "versions": _versions(),
    }


def one_line(machine: dict[str, Any]) -> str:
    """Returns one line for the head of a table or a plot."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['python']}, core {machine['core']}, load {machine['load']}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _core() -> str:
    try:
        with warnings.catch_warnings():  # the word "pure" replaces the warning
            warnings.simplefilter("ignore")
            from transfer.transports import core
    except ImportError:
        return "none"
    return str(core.IMPLEMENTATION)


def _revision() -> str:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
