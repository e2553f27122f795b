"""Python for aarch64 on a machine of another kind: Debian's packages for arm64 in a folder, run by qemu.

Nothing is installed on this machine, and no root is needed: apt has its own lists and its own state here.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Debian 12's
VERSION = "3.11"
#: packages of Debian; numpy needs the second
SYSTEM = (f"python{VERSION}", "libstdc++6")
#: what the tests import, in wheels for aarch64
PACKAGES = (
    *("pytest>=8.3", "pytest-timeout>=2.3", "pytest-asyncio>=0.25", "hypothesis>=6.100"),
    *("numpy>=1.26", "cryptography>=42.0.4", "lz4>=4.3", "msgspec>=0.18", "psutil>=5.9"),
)
_EMULATOR = "qemu-aarch64-static"
#: seconds for apt or pip
_LIMIT = 600


class Missing(Exception):
    """What a run needs, and how to get it."""


@dataclass(frozen=True)
class Emulated:
    """The command that runs the emulated Python, and the folder of its packages."""

    python: Path
    packages: Path


def prepare(place: Path, pip: list[str]) -> Emulated:
    """Downloads what is not there yet. pip: the command of a pip on this machine. Raises Missing."""
    if platform.machine() == "aarch64":
        raise Missing("this machine is an aarch64: `make test` tests the core on it")
    place.mkdir(parents=True, exist_ok=True)
    emulator = _emulator(place)
    root = place / "root"
    if not _is_made_of(place / "root-done", SYSTEM):
        _unpack(_download(place, "arm64", list(SYSTEM)), root)
        (place / "root-done").write_text(repr(SYSTEM))
    packages = place / "packages"
    if not _is_made_of(place / "packages-done", PACKAGES):
        shutil.rmtree(packages, ignore_errors=True)
        platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28, 34)]
        platforms.append("--platform=manylinux2014_aarch64")
        only = ["--only-binary=:all:", f"--python-version={VERSION}", "--implementation=cp"]
        _run(
            [*pip, "-qq", "install", f"--target={packages}", *platforms, *only, *PACKAGES],
            "can pip reach an index?",
        )
        (place / "packages-done").write_text(repr(PACKAGES))
    return Emulated(_command(place, emulator, root), packages)


def _is_made_of(mark: Path, names: tuple[str, ...]) -> bool:
    return mark.exists() and mark.read_text() == repr(names)


def _emulator(place: Path) -> Path:
    found = shutil.which(_EMULATOR)
    if found:
        return Path(found)
    unpacked = place / "qemu"
    if not _is_made_of(place / "qemu-done", (_EMULATOR,)):
        # Without what it depends on: it is one static program.
        own = subprocess.run(
            ["dpkg", "--print-architecture"], capture_output=True, text=True, check=False, timeout=_LIMIT
        )
        _unpack(_download(place, own.stdout.strip(), ["qemu-user-static"], alone=True), unpacked)
        (place / "qemu-done").write_text(repr((_EMULATOR,)))
    return unpacked / "usr/bin" / _EMULATOR


def _download(place: Path, architecture: str, names: list[str], *, alone: bool = False) -> list[Path]:
    """Returns the packages, and those that they depend on unless they are wanted alone."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Missing("this needs Debian's packages for arm64, and so apt-get, or an aarch64 machine")
    own = place / f"apt-{architecture}"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    (own / "state/status").touch()  # nothing is installed: all that a package needs is downloaded
    options = {
        "APT::Architecture": architecture, "APT::Architectures": architecture,
        "APT::Sandbox::User": "root", "APT::Install-Recommends": "false",
        "Dir::State": own / "state", "Dir::State::status": own / "state/status", "Dir::Cache": own / "cache",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"], "can apt-get reach Debian's packages?")
    archives = own / "cache/archives"
    if alone:
        _run([*apt, "download", *names], "can apt-get reach Debian's packages?", archives)
    else:
        _run([*apt, "--yes", "--download-only", "install", *names], "can apt-get reach Debian's packages?")
    return sorted(archives.glob("*.deb"))


def _unpack(packages: list[Path], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for package in packages:
        _run(["dpkg-deb", "--extract", str(package), str(folder)], "is there room on the disk?")


def _command(place: Path, emulator: Path, root: Path) -> Path:
    """A script, so that it is `sys.executable`: children of a test run emulated as well."""
    script = place / "python"
    script.write_text(
        f"#!/bin/sh\nexport PYTHONHOME={root}/usr\n"
        f'exec {emulator} -L {root} -0 {script} {root}/usr/bin/python{VERSION} "$@"\n'
    )
    script.chmod(0o755)
    return script


def _run(command: list[str], hint: str, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_LIMIT,
            stdin=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took more than {_LIMIT} s: {hint}") from error
    if done.returncode:
        raise Missing(f"`{' '.join(map(str, command))}` failed: {hint}\n{done.stderr[-2000:]}")
