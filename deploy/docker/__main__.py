"""Builds the image's targets, and checks them. See verify.sh."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from deploy.docker import machine
from deploy.docker.base import base_root
from deploy.docker.container import ProofFailed
from deploy.docker.image import Builder
from deploy.docker.proofs import Image, prove
from deploy.docker.steps import StepFailed

TARGETS = ("tcp", "rdma")


def main() -> int:
    """Returns 0: all checks pass. 1: a check fails. 2: this machine cannot check it."""
    parser = argparse.ArgumentParser(prog="verify.sh", description=__doc__)
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--context", type=Path, required=True)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--place", type=Path, required=True)
    asked = parser.parse_args()
    begun = time.monotonic()

    def report(line: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - begun:5.0f} s] {line}\n")
        sys.stdout.flush()

    try:
        _verify(asked, report)
    except machine.Unable as error:
        sys.stderr.write(f"verify.sh: {error}\n")
        return 2
    except (StepFailed, ProofFailed) as error:
        sys.stderr.write(f"verify.sh: FAILED: {error}\n")
        return 1
    report("all checks pass")
    return 0


def _verify(asked: argparse.Namespace, report: machine.Report) -> None:
    targets = TARGETS if asked.target == "all" else (asked.target,)
    asked.cache.mkdir(parents=True, exist_ok=True)
    base = base_root(asked.cache, report)
    report(f"base: {base}")
    builder = Builder(asked.place, machine.given(), report)
    builder.import_base(base)
    if asked.python is not None:
        base = builder.add_python(asked.python)
    for name in targets:
        builder.build(asked.context, name)
        image = Image(name, builder.root(name), builder.settings(name), base, asked.place / "volumes")
        prove(image, report)


if __name__ == "__main__":
    sys.exit(main())
