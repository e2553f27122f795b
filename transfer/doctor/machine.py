"""Checks the machine: Python, the core, the kernel's limits, libraries.

It imports no optional library: versions come from the packages' metadata.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from transfer.doctor import finding
from transfer.doctor.finding import Check, read
from transfer.transports.errors import TransferError, install_hint
from transfer.transports.rdma.failures import may_lock

#: descriptors that a server with many peers needs
_MANY_DESCRIPTORS = 16_384
#: bytes that a registered pool locks
_MUCH_MEMLOCK = 1 << 30


# --- Python and the core ----------------------------------------------------------------------


def base() -> Iterator[Check]:
    version = platform.python_version()
    python = f"{platform.python_implementation()} {version} ({sys.executable})"
    fine = sys.version_info >= (3, 11)
    yield Check("base", "python", "ok" if fine else "fail", python, "" if fine else "Python 3.11 or newer")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    linux = platform.system() == "Linux"
    yield Check(
        "base",
        "system",
        "ok" if linux else "warn",
        system,
        "" if linux else "only plain TCP and the pure core work here",
    )
    yield _core()
    yield from _other_packages()


def _other_packages() -> Iterator[Check]:
    others, remedy = finding.name_conflicts()
    if others:
        detail = f"{' and '.join(others)} installs files of the same names"
        yield Check("base", "package", "warn", detail, remedy)


def _core() -> Check:
    from transfer.transports import core

    try:
        if core.IMPLEMENTATION == "native":
            return Check("base", "core", "ok", "native (compiled)")
    except TransferError as error:
        return Check("base", "core", "fail", str(error), f"unset TRANSFER_CORE, or {core.HOW}")
    return Check(
        "base",
        "core",
        "warn",
        f"pure (Python, several times slower): {core.REASON}",
        core.HOW,
    )


# --- limits of the kernel -----------------------------------------------------------------------


def limits() -> Iterator[Check]:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < _MANY_DESCRIPTORS
    yield Check(
        "limits",
        "open files",
        "warn" if few else "ok",
        f"{_limit(soft)} now, {_limit(hard)} at most",
        f"each peer needs one descriptor; for thousands of peers: ulimit -n {_MANY_DESCRIPTORS}"
        if few
        else "",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    little = soft != resource.RLIM_INFINITY and soft < _MUCH_MEMLOCK
    lifted = little and may_lock()
    matters = little and not lifted and bool(list(Path("/sys/class/infiniband").glob("*")))
    yield Check(
        "limits",
        "locked memory",
        "warn" if matters else "ok",
        f"{_limit(soft)} bytes now, {_limit(hard)} at most"
        + (", lifted by CAP_IPC_LOCK" if lifted else "")
        + ("" if matters or not little else " (only RDMA needs it)"),
        "RDMA registers memory: ulimit -l unlimited, or LimitMEMLOCK=infinity" if matters else "",
    )
    yield from _kernel_values()


def _kernel_values() -> Iterator[Check]:
    backlog = read("/proc/sys/net/core/somaxconn")
    if backlog.isdigit():
        short = int(backlog) < 4096
        yield Check(
            "limits",
            "listen backlog",
            "warn" if short else "ok",
            backlog,
            "many peers that connect at once are refused: sysctl net.core.somaxconn=4096" if short else "",
        )
    pages = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled"))
    if pages:
        never = pages[1] == "never"
        hint = "large messages page in slowly: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Check("limits", "huge pages", "warn" if never else "ok", pages[1], hint if never else "")


def _limit(value: int) -> str:
    import resource

    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


# --- libraries ------------------------------------------------------------------------------------

#: distribution -> (purpose, our extra that installs it)
_OPTIONAL = {
    "numpy": ("tensors", "numpy"),
    "ml-dtypes": ("bfloat16 and float8 in numpy", "numpy"),
    "lz4": ("compression", "lz4"),
    "zstandard": ("abtp's compression by zstd", "zstd"),
    "torch": ("torch tensors, StreamDataset, the demo", "torch"),
    "pyspark": ("the Spark sink, the demo", "spark"),
    "pyarrow": ("the Spark sink, the demo", "spark"),
    "msgspec": ("send_pyobj, the spool, abtp", "objects"),
    "aiohttp": ("the broker's HTTP", "broker"),
    "cryptography": ("transfer certificates", "certificates"),
    "dnspython": ("dns:// endpoints", "discovery"),
    "scikit-learn": ("the demo's data", "demo"),
    "prometheus-client": ("metrics", "metrics"),
    "typer": ("this command", "cli"),
    "rich": ("progress bars", "cli"),
    "pyzmq": ("the broker's abtp, the benchmarks", "fronts"),
}


def libraries() -> Iterator[Check]:
    for name, (purpose, extra) in _OPTIONAL.items():
        version = _version(name)
        if version:
            yield Check("libraries", name, "ok", version)
        else:
            yield Check("libraries", name, "off", f"not installed; for {purpose}", install_hint(extra))
    yield _java()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _java() -> Check:
    from transfer.spark.session import check_java

    try:
        return Check("libraries", "java", "ok", f"Java {check_java()}")
    except TransferError as error:
        detail, _, hint = str(error).partition("\n  hint: ")
        return Check("libraries", "java", "off", detail, hint)
