"""The virtual environments that build the wheels: one with the compiler, and one for each interpreter."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.wheels.interpreters import find_interpreter
from deploy.wheels.requirements import PYTHON_REQUIREMENTS, REQUIREMENTS

#: seconds for pip to install what one environment needs; the compiler is 80 MB
_LIMIT = 900

#: takes a line about the progress
Report = Callable[[str], None]


class Unable(Exception):
    """Something is missing here. Its text says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def find_package(self, name: str) -> Path:
        """Returns the folder of an installed package."""
        (found,) = self.folder.glob(f"lib/python*/site-packages/{name}")
        return found


def tools_environment(place: Path, report: Report) -> Environment:
    """Returns the environment with zig and auditwheel. Raises Unable."""
    # `make test-aarch64` runs in another environment of the same Python, and takes this one as it is.
    return _environment(place / "tools", Path(sys.executable).resolve(), REQUIREMENTS, report)


def python_environments(place: Path, versions: list[str], report: Report) -> dict[str, Environment]:
    """Returns an environment with Cython for each version of Python. Raises Unable, naming all that miss."""
    found = {version: find_interpreter(version) for version in versions}
    missing = [version for version, path in found.items() if path is None]
    if missing:
        there = [version for version in versions if version not in missing]
        raise Unable(
            f"no python{', no python'.join(missing)} with its headers in PATH or among pyenv's: install it "
            f"(`apt install python{missing[0].rstrip('t')}-dev`, `pyenv install {missing[0]}`), or leave it "
            f'out: make wheels PYTHONS="{" ".join(there)}"'
        )
    return {
        version: _environment(place / f"python-{version}", path, PYTHON_REQUIREMENTS, report)
        for version, path in found.items()
        if path is not None
    }


def _environment(folder: Path, interpreter: Path, requirements: Path, report: Report) -> Environment:
    """Makes an environment, or takes the one that an earlier run made of the same interpreter and pins."""
    wanted = hashlib.sha256(f"{interpreter}\n{requirements.read_text()}".encode()).hexdigest()
    mark = folder / "made-of"
    if not mark.exists() or mark.read_text() != wanted:
        report(f"environment: {folder.name}")
        _run([str(interpreter), "-m", "venv", "--clear", str(folder)], "apt install python3-venv")
        pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        _run([*pip, "--only-binary", ":all:", "--requirement", str(requirements)], "can pip reach an index?")
        mark.write_text(wanted)
    return Environment(folder)


def _run(command: list[str], hint: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise Unable(f"`{' '.join(command)}` took more than {_LIMIT} s: {hint}") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise Unable(f"`{' '.join(command)}` failed: {hint}\n{last}")
