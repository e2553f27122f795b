"""Builds the source distribution and the wheels of the commit into dist/, with SHA256SUMS.

    python3 -m deploy.wheels --python 3.12 --platform manylinux-x86_64

By default: 3.11, 3.12 and 3.13, each for manylinux and musllinux on x86-64 and aarch64. zig compiles all of
them on this machine, auditwheel checks them, and each has the compiled core. See deploy/wheels/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from deploy.wheels.archives import sha256_sums
from deploy.wheels.build import BuildFailed, build_wheel
from deploy.wheels.environments import Report, Unable, python_environments, tools_environment
from deploy.wheels.platforms import PLATFORMS
from deploy.wheels.source import make_source
from deploy.wheels.target import Target

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Returns 0; 1: a wheel could not be built; 2: this machine lacks something."""
    parser = argparse.ArgumentParser(
        prog="python3 -m deploy.wheels", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--python", nargs="+", default=PYTHONS, metavar="VERSION", help="such as 3.12; 3.14t: free-threaded"
    )
    parser.add_argument("--platform", nargs="+", default=list(PLATFORMS), choices=list(PLATFORMS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--place", type=Path, default=ROOT / "build/wheels", help="for environments and temporary files"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files compiled at once")
    asked = parser.parse_args()
    begun = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - begun:4.0f} s] {line}", flush=True)

    try:
        _build_all(asked, report)
    except Unable as error:
        print(f"make wheels: {error}", file=sys.stderr)
        return 2
    except BuildFailed as error:
        print(f"make wheels: {error}", file=sys.stderr)
        return 1
    return 0


def _build_all(asked: argparse.Namespace, report: Report) -> None:
    place, out = asked.place.resolve(), asked.out.resolve()
    place.mkdir(parents=True, exist_ok=True)
    environments = python_environments(place, list(asked.python), report)
    tools = tools_environment(place, report)
    for old in [*out.glob("tensor_transfer-*"), *out.glob("SHA256SUMS")]:
        old.unlink()  # another commit's would be uploaded with these
    source = make_source(ROOT, place, out, environments[asked.python[0]])
    report(f"{source.sdist.name}: {_size(source.sdist)}")
    tree = source.unpack(place / "tree")
    zig = tools.find_package("ziglang") / "zig"
    for platform in asked.platform:
        for version in asked.python:
            target = Target(PLATFORMS[platform], version, environments[version], zig, place)
            wheel = build_wheel(target, source, tree, tools, out, asked.jobs)
            report(f"{wheel.name}: {_size(wheel)}")
    (out / "SHA256SUMS").write_text(sha256_sums(out))
    report(f"{out / 'SHA256SUMS'}")


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
