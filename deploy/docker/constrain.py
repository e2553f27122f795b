"""Writes constraints.txt: the version of everything that the image installs by pip.

    python3.11 deploy/docker/constrain.py            from what pip finds newest now, on the machine's index
    python3.11 deploy/docker/constrain.py --check    only tells whether that would change something

Needs Python 3.11 on Linux, as in the image, since other ones may need other packages.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("constraints.txt")
DOCKERFILE = Path(__file__).with_name("Dockerfile")
#: what the build installs to build with; pyproject.toml names the first two
TOOLS = ("setuptools>=77", "Cython>=3.1", "wheel")
_HEAD = """\
# Made by deploy/docker/constrain.py; tests/deploy/test_image.py compares it with pyproject.toml.
"""


def wanted(dockerfile: str) -> list[str]:
    """What the image installs: ourselves with the Dockerfile's EXTRAS."""
    extras = re.search(r"^ARG EXTRAS=(\S+)$", dockerfile, re.MULTILINE)
    if extras is None:
        raise SystemExit("the Dockerfile has no ARG EXTRAS=...")
    return [f"{ROOT}[{extras[1]}]"]


def resolved(requirements: Sequence[str]) -> dict[str, str]:
    """The version of each distribution that pip would install for these, ourselves left out."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--quiet"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *requirements]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    found = [one["metadata"] for one in json.loads(answer.stdout)["install"]]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


def text_of(used: dict[str, str], tools: dict[str, str]) -> str:
    """The file."""
    lines = [f"{name}=={version}" for name, version in sorted(used.items()) if name != "tensor-transfer"]
    more = [f"{name}=={version}" for name, version in sorted(tools.items()) if name not in used]
    return "\n".join([_HEAD + "# in the image", *lines, "# to build with", *more]) + "\n"


def main() -> int:
    """Writes the file, or compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1: it would")
    asked = parser.parse_args()
    if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
        parser.error("this has to be Python 3.11 on Linux")
    text = text_of(resolved(wanted(DOCKERFILE.read_text())), resolved(TOOLS))
    before = FILE.read_text() if FILE.exists() else ""
    if asked.check:
        return int(text != before)
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
