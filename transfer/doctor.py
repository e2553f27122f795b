"""What works on this machine, and what to do about what does not. `transfer doctor` shows it.

Nothing here loads an optional library: versions come from the packages' metadata, devices from
/sys. A probe that fails is an answer, never an error.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from transports import config
from transports.errors import TransferError
from transports.wire import SocketType

#: how long one self test may take, seconds
PATIENCE = 5.0
#: descriptors that a server with many peers wants
MANY_DESCRIPTORS = 16_384
#: memory that a registered pool wants to lock, bytes
MUCH_MEMLOCK = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. status: ok; warn (works, but); fail (does not work); off (absent, and optional)."""

    group: str
    name: str
    status: str
    detail: str
    hint: str = ""


def examine() -> list[Check]:
    """All findings. Takes a few seconds at most; starts and ends sockets of its own."""
    probes: tuple[Callable[[], Iterable[Check]], ...] = (
        _base, _self_tests, _limits, _network, _devices, _libraries, _protocol,
    )  # fmt: skip
    return [check for probe in probes for check in probe()]


def healthy(checks: Iterable[Check]) -> bool:
    """True when nothing failed; what is absent and optional does not count."""
    return all(check.status != "fail" for check in checks)


def as_data(checks: Iterable[Check]) -> list[dict[str, str]]:
    """For `--json`."""
    return [asdict(check) for check in checks]


# --- Python and the core ----------------------------------------------------------------------


def _base() -> Iterator[Check]:
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
        "" if linux else "only plain TCP and the twin here",
    )
    yield _core()


def _core() -> Check:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the twin's: we say it below
            from transports import core
    except TransferError as error:
        return Check("base", "core", "fail", str(error), "unset TRANSFER_CORE, or run `make build`")
    if core.IMPLEMENTATION == "native":
        return Check("base", "core", "ok", "native (compiled)")
    return Check(
        "base",
        "core",
        "warn",
        f"twin (Python, several times slower): {core.REASON}",
        "apt install gcc python3-dev, then `make build` or reinstall the package",
    )


# --- self tests ---------------------------------------------------------------------------------


def _self_tests() -> Iterator[Check]:
    import os
    import tempfile

    yield _self_test("tcp", "tcp://127.0.0.1:0")
    with tempfile.TemporaryDirectory(prefix="transfer-doctor-") as folder:
        yield _self_test("ipc", f"ipc://{folder}/socket")
    yield _self_test("inproc", f"inproc://doctor-{os.getpid()}")


def _self_test(name: str, endpoint: str) -> Check:
    """Pushes one message through a socket pair of this transport."""
    from transfer.context import Context

    sent = b"doctor" * 100
    milliseconds = round(PATIENCE * 1000)
    try:
        with (
            Context() as context,
            context.socket(SocketType.PULL) as pull,
            context.socket(SocketType.PUSH) as push,
        ):
            push.sndtimeo = pull.rcvtimeo = milliseconds
            pull.bind(endpoint)
            push.connect(pull.last_endpoint)
            push.send(sent)
            same = pull.recv() == sent
    except (TransferError, OSError) as error:
        return Check("transports", name, "fail", f"{type(error).__name__}: {error}", _self_test_hint(name))
    if not same:
        return Check("transports", name, "fail", "a message arrived changed", _self_test_hint(name))
    return Check("transports", name, "ok", "a message went through")


def _self_test_hint(name: str) -> str:
    if name == "tcp":
        return "is a firewall closing the loopback interface?"
    return "report this with the output of `transfer doctor --json`"


# --- limits of the kernel -----------------------------------------------------------------------


def _limits() -> Iterator[Check]:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < MANY_DESCRIPTORS
    yield Check(
        "limits",
        "open files",
        "warn" if few else "ok",
        f"{_limit(soft)} now, {_limit(hard)} at most",
        f"each peer needs one descriptor; for thousands of peers: ulimit -n {MANY_DESCRIPTORS}"
        if few
        else "",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    little = soft != resource.RLIM_INFINITY and soft < MUCH_MEMLOCK
    matters = little and bool(_rdma_devices())
    yield Check(
        "limits",
        "locked memory",
        "warn" if matters else "ok",
        f"{_limit(soft)} bytes now, {_limit(hard)} at most"
        + ("" if matters or not little else " (only RDMA needs it)"),
        "RDMA registers memory: ulimit -l unlimited, or LimitMEMLOCK=infinity" if matters else "",
    )
    yield from _kernel_values()


def _kernel_values() -> Iterator[Check]:
    backlog = _read("/proc/sys/net/core/somaxconn")
    if backlog.isdigit():
        short = int(backlog) < 1024
        yield Check(
            "limits",
            "listen backlog",
            "warn" if short else "ok",
            backlog,
            "many peers that connect at once are refused: sysctl net.core.somaxconn=4096" if short else "",
        )
    pages = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    if pages:
        never = pages[1] == "never"
        hint = "large messages page in slowly: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Check("limits", "huge pages", "warn" if never else "ok", pages[1], hint if never else "")


def _limit(value: int) -> str:
    import resource

    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


# --- network and devices --------------------------------------------------------------------------


def _network() -> Iterator[Check]:
    addresses = list(_interfaces())
    if addresses:
        told = ", ".join(f"{name} {address}" for name, address in addresses)
        yield Check("network", "interfaces", "ok", told)
    else:
        yield Check("network", "interfaces", "warn", "none found", "only loopback and ipc will do")


def _interfaces() -> Iterator[tuple[str, str]]:
    """(interface, IPv4 address), in the kernel's order. Linux only."""
    if sys.platform != "linux":
        return
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue  # up, but without an IPv4 address
            yield name, socket.inet_ntoa(answer[20:24])


def _devices() -> Iterator[Check]:
    devices = _rdma_devices()
    if devices:
        yield Check(
            "devices",
            "rdma",
            "off",
            "; ".join(devices),
            "this release moves data by TCP; see docs/transports.md",
        )
    else:
        yield Check("devices", "rdma", "off", "no device in /sys/class/infiniband", "data goes by TCP")
    library = _find_library("ucp")
    ucx = _version("ucxx-cu13") or _version("ucxx-cu12") or _version("ucxx")
    if ucx:
        yield Check(
            "devices", "ucx", "off", f"ucxx {ucx}", "this release moves data by TCP; see docs/transports.md"
        )
    else:
        detail = "ucxx is not installed" + (f", libucp is ({library})" if library else ", nor is libucp")
        yield Check("devices", "ucx", "off", detail, "pip install 'tensor-transfer[ucx]'")
    gpu = _read("/proc/driver/nvidia/version").splitlines()
    if gpu:
        yield Check("devices", "cuda", "ok", gpu[0])
    else:
        yield Check("devices", "cuda", "off", "no NVIDIA driver", "tensors on the CPU need none")


def _rdma_devices() -> list[str]:
    """`mlx5_0 port 1 ACTIVE` for each port of each verbs device."""
    return [
        f"{port.parent.parent.name} port {port.name} {_read(port / 'state').split(':')[-1].strip() or '?'}"
        for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    ]


def _find_library(name: str) -> str:
    from ctypes.util import find_library

    try:
        return find_library(name) or ""
    except OSError:  # it asks ldconfig or gcc, which may be missing
        return ""


# --- libraries ------------------------------------------------------------------------------------

#: distribution -> (what for, how to get it)
_OPTIONAL = {
    "numpy": ("tensors", "pip install 'tensor-transfer[numpy]'"),
    "ml-dtypes": ("bfloat16 and float8 in numpy", "pip install 'tensor-transfer[numpy]'"),
    "lz4": ("compression", "pip install 'tensor-transfer[lz4]'"),
    "torch": ("torch tensors, StreamDataset, the demo", "pip install 'tensor-transfer[torch]'"),
    "pyspark": ("the Spark sink, the demo", "pip install 'tensor-transfer[spark]'"),
    "pyarrow": ("the Spark sink, the demo", "pip install 'tensor-transfer[spark]'"),
    "scikit-learn": ("the demo's data", "pip install 'tensor-transfer[demo]'"),
    "prometheus-client": ("metrics", "pip install prometheus-client"),
    "typer": ("this command", "pip install typer"),
    "rich": ("progress bars", "pip install rich"),
    "pyzmq": ("the benchmarks", "pip install 'tensor-transfer[bench]'"),
}


def _libraries() -> Iterator[Check]:
    for name, (purpose, remedy) in _OPTIONAL.items():
        version = _version(name)
        if version:
            yield Check("libraries", name, "ok", version)
        else:
            yield Check("libraries", name, "off", f"not installed; for {purpose}", remedy)
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


# --- what decides the transport ---------------------------------------------------------------------


def _protocol() -> Iterator[Check]:
    try:
        chosen = config.load()
    except TransferError as error:
        yield Check("protocol", "protocol", "fail", str(error))
        return
    unmet = chosen.protocol in ("rdma", "ucx")
    yield Check(
        "protocol",
        "protocol",
        "warn" if unmet else "ok",
        f"{chosen.protocol} ({_source(chosen.protocol_source)})",
        "this release has tcp only and falls back to it" if unmet else "",
    )
    required = chosen.policy == "require" and unmet
    yield Check(
        "protocol",
        "policy",
        "fail" if required else "ok",
        f"{chosen.policy} ({_source(chosen.policy_source)})",
        "every connect will fail: set MC_RPC_POLICY=prefer" if required else "",
    )


def _source(name: str) -> str:
    return "the default" if name == "default" else f"set by {name}"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not every kernel has every file; the check that reads it says what is missing
        return ""
