"""Which UCX this machine and this process have, without loading it.

`probe` is for the choice of a transport, `report` for `transfer doctor`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from transfer.transports.config import ucx_driver, ucx_of_the_system
from transfer.transports.errors import OptionError, TransferError, install_hint
from transfer.transports.probe import Probe
from transfer.transports.ucx import driver
from transfer.transports.ucx.installed import (
    PACKAGES,
    Library,
    available,
    copies,
    has_infiniband,
    infiniband_module,
    mapped,
    own_maps,
    wheel,
)

_DEVICES = Path("/sys/class/infiniband")
PREFER_SYSTEM = "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"


def devices(root: Path = _DEVICES) -> tuple[str, ...]:
    """The RDMA devices of this machine, by name."""
    try:
        return tuple(sorted(entry.name for entry in root.iterdir()))
    except OSError:
        return ()


def probe() -> Probe:
    """Whether UCX can be offered. Loads nothing: UCX takes up to a second."""
    try:
        wished = ucx_driver()
    except OptionError as error:
        return Probe(False, _first_line(error), "missing", error.hint, better=False)
    if not available(wished):
        hint = f"{install_hint('ucx')} (or pip install {PACKAGES[1]})"
        return Probe(False, "UCX is not installed", "missing", hint, better=False)
    names, directory = devices(), wheel()
    details = {"devices": names, "wheel": str(directory or "")}
    if not names:
        return Probe(True, "no RDMA device: UCX would use TCP too", better=False, details=details)
    if directory is not None and not infiniband_module(directory):
        reason = f"the UCX in {directory} has no InfiniBand module"
        hint = f"set {PREFER_SYSTEM} where the system has a UCX with one"
        return Probe(True, reason, hint=hint, better=ucx_of_the_system(), details=details)
    return Probe(True, details=details)


# --- for `transfer doctor` ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The state of UCX here.

    libraries: those loaded in this process, and copies: their folders. infiniband: whether that UCX (or, if
    none is loaded, the one that would be) has an InfiniBand module. devices: the machine's. version: of the
    loaded UCX, driver: the one that loaded it; or "". warnings: (the problem, the remedy).
    """

    installed: bool
    version: str
    driver: str
    libraries: tuple[Library, ...]
    copies: tuple[str, ...]
    infiniband: bool
    devices: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...] = field(default=())


def report(maps: str | None = None, *, load: bool = False) -> ProbeReport:
    """Inspects this process (or the given maps). load: loads UCX first, if possible.

    Never raises for a missing or broken UCX: that is among the warnings.
    """
    warnings: list[tuple[str, str]] = []
    installed = False
    try:
        installed = available(ucx_driver())
    except OptionError as error:
        warnings.append((_first_line(error), error.hint))
    if load and installed:
        try:
            driver.fabric()
        except TransferError as error:
            warnings.append((_first_line(error), error.hint))
    fabric = driver.loaded()
    libraries = mapped(own_maps() if maps is None else maps)
    directories = copies(libraries)
    directory = wheel()
    infiniband = (
        has_infiniband(libraries) if libraries else directory is not None and infiniband_module(directory)
    )
    names = devices()
    warnings += _warnings(directories, infiniband, names, bool(libraries) or directory is not None)
    version, by = (fabric.version, fabric.driver) if fabric is not None else ("", "")
    return ProbeReport(installed, version, by, libraries, directories, infiniband, names, tuple(warnings))


def _first_line(error: TransferError) -> str:
    """The text of an error without the hint."""
    return str(error).partition("\n")[0]


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
