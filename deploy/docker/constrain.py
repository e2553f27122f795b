"""Writes constraints.txt and build-constraints.txt: versions and hashes of all packages that pip installs in
the image, and of the build's packages.

    python3.11 deploy/docker/constrain.py            with the newest versions on the machine's index
    python3.11 deploy/docker/constrain.py --keep     with the versions that the files have
    python3.11 deploy/docker/constrain.py --check    only reports whether that would change something

Needs Python 3.11 on Linux, as in the image, since older versions need more packages than newer ones.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("constraints.txt")
BUILD_FILE = Path(__file__).with_name("build-constraints.txt")
#: the machines that images are made for, and the wheels that Debian 12 accepts there
MACHINES = ("x86_64", "aarch64")
#: the Pythons of the bases that the Dockerfile takes
PYTHONS = ("3.11", "3.12", "3.13")
_GLIBC = ("2_36", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17")
DOCKERFILE = Path(__file__).with_name("Dockerfile")
#: the packages of the build; pyproject.toml names the first two
TOOLS = ("setuptools>=77", "Cython>=3.3.1", "wheel")
_HEAD = """\
# Made by deploy/docker/constrain.py; tests/deploy/test_image.py compares it with pyproject.toml.
"""


def wanted(dockerfile: str) -> list[str]:
    """Returns the requirements of the image: transfer with the Dockerfile's EXTRAS."""
    extras = re.search(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    if extras is None:
        raise SystemExit("the Dockerfile has no ARG EXTRAS=...")
    return [f"{ROOT}[{extras[1]}]"]


def resolved(requirements: Sequence[str]) -> dict[str, str]:
    """Returns the version of each distribution that pip would install for these, without transfer."""
    found = _asked(*requirements)
    return {name: one["metadata"]["version"] for name, one in found.items() if name != "tensor-transfer"}


def pinned(text: str) -> dict[str, str]:
    """Returns the versions in a file of `text_of`."""
    return dict(re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE))


def hashes(pins: dict[str, str], machine: str, python: str) -> dict[str, str]:
    """Returns the SHA-256 of the wheel that pip takes for each on such a machine with such a Python."""
    tags = [f"manylinux_{version}_{machine}" for version in _GLIBC] + [f"manylinux2014_{machine}", "any"]
    own = "cp" + python.replace(".", "")
    options = [f"--platform={tag}" for tag in tags] + [f"--abi={abi}" for abi in (own, "abi3", "none")]
    options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "--no-deps"]
    found = _asked(*options, "--target=unused", *(f"{name}=={version}" for name, version in pins.items()))
    return {name: one["download_info"]["archive_info"]["hashes"]["sha256"] for name, one in found.items()}


def _asked(*arguments: str) -> dict[str, dict[str, Any]]:
    """Returns what pip would install, by name."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *arguments]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    found = json.loads(answer.stdout)["install"]
    return {one["metadata"]["name"].lower().replace("_", "-"): one for one in found}


def text_of(pins: dict[str, str]) -> str:
    """Returns the text of the file."""
    known = [hashes(pins, machine, python) for machine in MACHINES for python in PYTHONS]
    lines = []
    for name, version in sorted(pins.items()):
        wheels = sorted({of_machine[name] for of_machine in known})
        lines.append(
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{wheel}" for wheel in wheels)])
        )
    return _HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Writes the files, or compares them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="keep the versions, ask for their hashes")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1: it would")
    asked = parser.parse_args()
    if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
        parser.error("this needs Python 3.11 on Linux")
    asks = {FILE: wanted(DOCKERFILE.read_text()), BUILD_FILE: TOOLS}
    texts = {
        file: text_of(pinned(file.read_text()) if asked.keep else resolved(requirements))
        for file, requirements in asks.items()
    }
    if asked.check:
        return int(any(not file.exists() or file.read_text() != text for file, text in texts.items()))
    for file, text in texts.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
