"""Which UCX is installed here, as files and names of modules; loads nothing of it.

The functions with text or paths as arguments are pure, or read only there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: UCX's own libraries; one process should have one of each
_LIBRARIES = ("libucp", "libuct", "libucs", "libucm")
#: modules that UCX loads from the folder of its libraries, for InfiniBand and RoCE
_INFINIBAND = ("libuct_ib", "libuct_ib_mlx5", "libuct_ib_efa", "libuct_rdmacm")
#: modules of distributions that bring UCX
_MODULES = ("libucx", "ucp", "ucxx")
#: distributions of UCX alone
PACKAGES = ("libucx-cu12", "libucx-cu13")
#: the name of UCX's own library for the system's loader
SONAME = "libucp.so.0"


def available(wished: str = "auto") -> bool:
    """Whether there is a UCX to load. "auto": libucx, ucx-py (the module ucp) or ucxx is installed, which
    have one. "libucp": also the system's UCX alone, which other packages may have installed."""
    return wished == "libucp" or any(find_spec(name) is not None for name in _MODULES)


def libraries(maps: str, prefix: str, *, prefer_system: bool) -> tuple[str, ...]:
    """The paths to try as libucp, in order: one that the process has loaded already, so that there are not
    two; then the same as ucxx tries: the wheel's, the environment's, the system's."""
    own = [one.path for one in mapped(maps) if one.name == "libucp"][:1]
    directory = wheel()
    wheels = [str(directory / SONAME)] if directory is not None else []
    here = Path(prefix) / "lib" / SONAME
    system = [*([str(here)] if here.is_file() else []), SONAME]
    return tuple(own + (system + wheels if prefer_system else wheels + system))


@dataclass(frozen=True, slots=True)
class Library:
    """One file of UCX that a process has mapped. name: "libucp", "libuct_ib"; path: its file."""

    name: str
    path: str

    @property
    def directory(self) -> str:
        """The folder of UCX itself: its modules lie in a folder `ucx` in there."""
        parent = Path(self.path).parent
        return str(parent.parent if parent.name == "ucx" else parent)


def mapped(maps: str) -> tuple[Library, ...]:
    """The files of UCX in the text of /proc/PID/maps, each once, in order."""
    found: dict[str, Library] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        path = fields[5].removesuffix(" (deleted)")
        name = Path(path).name.partition(".so")[0]
        # A repaired wheel gives its copies names like libucp-1a2b3c4d.so.0.0.0
        name = name.partition("-")[0]
        if name in _LIBRARIES or name.startswith(("libuct_", "libucm_")):
            found.setdefault(path, Library(name, path))
    return tuple(found.values())


def copies(libraries: Iterable[Library]) -> tuple[str, ...]:
    """Every folder that UCX was loaded from, in order. More than one: two UCX in one process."""
    return tuple(dict.fromkeys(one.directory for one in libraries if one.name in _LIBRARIES))


def has_infiniband(libraries: Iterable[Library]) -> bool:
    """Whether the InfiniBand module is among the loaded files, or lies where UCX looks for it."""
    libraries = tuple(libraries)
    if any(one.name in _INFINIBAND for one in libraries):
        return True
    return any(infiniband_module(Path(directory)) for directory in copies(libraries))


def infiniband_module(directory: Path) -> bool:
    """Whether the UCX in this folder has a module for InfiniBand."""
    modules = directory / "ucx"
    try:
        names = {name.partition(".so")[0] for name in os.listdir(modules)}
    except OSError:
        return False
    return not names.isdisjoint(_INFINIBAND)


def wheel() -> Path | None:
    """The folder of a UCX that was installed as a wheel, with ucxx or alone; None without one."""
    spec = find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(next(iter(spec.submodule_search_locations))) / "lib"
    return directory if directory.is_dir() else None


def own_maps() -> str:
    """The mappings of this process, from /proc/self/maps; "" where there is no /proc."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        return Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return ""
