"""What there is of UCX on this machine and in this process, without loading it.

`probe` is for the choice of a transport, `report` for `transfer doctor`. The functions that read
text or paths that they are given are pure, or look only there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from transports.config import ucx_of_the_system
from transports.errors import TransferError
from transports.probe import Probe
from transports.ucx import driver

#: UCX's own libraries; one process should have one of each
_LIBRARIES = ("libucp", "libuct", "libucs", "libucm")
#: modules that UCX finds beside its libraries, for InfiniBand and RoCE
_INFINIBAND = ("libuct_ib", "libuct_ib_mlx5", "libuct_ib_efa", "libuct_rdmacm")
_DEVICES = Path("/sys/class/infiniband")
#: distributions that bring the module ucxx
PACKAGES = ("ucxx-cu12", "ucxx-cu13")
PREFER_SYSTEM = "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"


@dataclass(frozen=True, slots=True)
class Library:
    """One file of UCX that a process has mapped. name: "libucp", "libuct_ib"; path: where from."""

    name: str
    path: str

    @property
    def directory(self) -> str:
        """Where UCX itself lies: its modules have a directory `ucx` of their own in there."""
        parent = Path(self.path).parent
        return str(parent.parent if parent.name == "ucx" else parent)


def mapped(maps: str) -> tuple[Library, ...]:
    """The files of UCX in the text of /proc/PID/maps, each once, in their order there."""
    found: dict[str, Library] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        path = fields[5].removesuffix(" (deleted)")
        name = Path(path).name.partition(".so")[0]
        # A wheel that was repaired gives its copies names like libucp-1a2b3c4d.so.0.0.0
        name = name.partition("-")[0]
        if name in _LIBRARIES or name.startswith(("libuct_", "libucm_")):
            found.setdefault(path, Library(name, path))
    return tuple(found.values())


def copies(libraries: Iterable[Library]) -> tuple[str, ...]:
    """Every directory that UCX was loaded from, in order. More than one: two UCX in one process."""
    return tuple(dict.fromkeys(one.directory for one in libraries if one.name in _LIBRARIES))


def has_infiniband(libraries: Iterable[Library]) -> bool:
    """Whether the InfiniBand module is among the loaded files, or lies where UCX looks for it."""
    libraries = tuple(libraries)
    if any(one.name in _INFINIBAND for one in libraries):
        return True
    return any(infiniband_module(Path(directory)) for directory in copies(libraries))


def infiniband_module(directory: Path) -> bool:
    """Whether the UCX in this directory has a module for InfiniBand."""
    modules = directory / "ucx"
    return any(next(modules.glob(f"{name}.so*"), None) is not None for name in _INFINIBAND)


def wheel() -> Path | None:
    """The directory of the UCX that came with ucxx as a wheel, if it did."""
    spec = find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(next(iter(spec.submodule_search_locations))) / "lib"
    return directory if directory.is_dir() else None


def devices(root: Path = _DEVICES) -> tuple[str, ...]:
    """The RDMA devices of this machine, by name."""
    try:
        return tuple(sorted(entry.name for entry in root.iterdir()))
    except OSError:
        return ()


def probe() -> Probe:
    """Whether UCX could be offered. Nothing is imported: ucxx takes a second, and sets variables."""
    if find_spec("ucxx") is None:
        old = find_spec("ucp") is not None
        reason = "ucxx is not installed"
        if old:
            reason += "; ucx-py is, which is not supported"
        return Probe(False, reason, "missing", f"pip install {PACKAGES[0]} (or {PACKAGES[1]})", better=False)
    names, directory = devices(), wheel()
    details = {"devices": names, "wheel": str(directory or "")}
    if not names:
        return Probe(True, "no RDMA device: UCX would use TCP as we do", better=False, details=details)
    if directory is not None and not infiniband_module(directory):
        reason = f"the UCX in {directory} has no InfiniBand module"
        hint = f"set {PREFER_SYSTEM} where the system has a UCX with one"
        return Probe(True, reason, hint=hint, better=ucx_of_the_system(), details=details)
    return Probe(True, details=details)


# --- for `transfer doctor` ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of UCX here.

    libraries: what this process has loaded, and copies: from which directories. infiniband: whether
    that (or, if nothing is loaded, what would be) has an InfiniBand module. devices: the machine's.
    version: of the loaded UCX, or "". warnings: (what is wrong, what to do).
    """

    installed: bool
    version: str
    libraries: tuple[Library, ...]
    copies: tuple[str, ...]
    infiniband: bool
    devices: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...] = field(default=())


def report(maps: str | None = None, *, load: bool = False) -> Report:
    """Looks at this process (or at the maps given). load: loads UCX first, if it can be.

    Never raises for what is missing or broken: that is among the warnings.
    """
    warnings: list[tuple[str, str]] = []
    installed = find_spec("ucxx") is not None
    if load and installed:
        try:
            driver.fabric()
        except TransferError as error:
            warnings.append((str(error).partition("\n")[0], error.hint))
    fabric = driver.loaded()
    libraries = mapped(_own_maps() if maps is None else maps)
    directories = copies(libraries)
    directory = wheel()
    infiniband = (
        has_infiniband(libraries) if libraries else directory is not None and infiniband_module(directory)
    )
    names = devices()
    warnings += _warnings(directories, infiniband, names, bool(libraries) or directory is not None)
    version = fabric.version if fabric is not None else ""
    return Report(installed, version, libraries, directories, infiniband, names, tuple(warnings))


def _warnings(
    directories: tuple[str, ...], infiniband: bool, names: tuple[str, ...], known: bool
) -> list[tuple[str, str]]:
    found = []
    if len(directories) > 1:
        found.append(
            (
                f"two copies of UCX in one process: {', '.join(directories)}",
                "let all of them use the system's: " + PREFER_SYSTEM,
            )
        )
    if names and known and not infiniband:
        found.append(
            (
                f"there is an RDMA device ({', '.join(names)}), and this UCX has no InfiniBand module",
                f"install the system's UCX with InfiniBand and set {PREFER_SYSTEM}",
            )
        )
    return found


def _own_maps() -> str:
    if not sys.platform.startswith("linux"):
        return ""
    try:
        return Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return ""
