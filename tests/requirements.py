"""Prints what extras of pyproject.toml require, for pip's `--requirement`.

python tests/requirements.py dev bench                           all of them
python tests/requirements.py dev bench --without torch pyspark   but these, and what needs them
python tests/requirements.py dev --only pyspark                  these alone
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = "tensor-transfer"
#: packages that install another one of these with them
NEEDED_BY = {"torch": ("torchdata",)}


def name_of(requirement: str) -> str:
    """The distribution that a requirement names."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def requirements(extras: Iterable[str], declared: dict[str, list[str]]) -> set[str]:
    """Those of the extras; what an extra takes from another one is in them."""
    found = set()
    for extra in extras:
        for one in declared[extra]:
            if name_of(one) == OURS:
                found |= requirements(
                    re.findall(r"[\w-]+", one.partition("[")[2].partition("]")[0]), declared
                )
            else:
                found.add(one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("extras", nargs="+")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    asked = parser.parse_args()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    left_out = {one for name in asked.without for one in (name, *NEEDED_BY.get(name, ()))}
    for one in sorted(requirements(asked.extras, declared)):
        if name_of(one) not in left_out and (not asked.only or name_of(one) in asked.only):
            print(one)


if __name__ == "__main__":
    main()
