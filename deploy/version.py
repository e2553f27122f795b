"""The version of this tree. The tags of git are its one source.

    python3 deploy/version.py        prints it

A tree has the first of these that it has:

    TRANSFER_VERSION                 the variable: for builds that see no git, such as an image's
    PKG-INFO                         of a source distribution
    a tag `v0.2.0` at the commit     0.2.0
    three commits after that tag     0.2.1.dev3+g1a2b3c4
    no tag, 2710 commits             0.1.0.dev2710+g1a2b3c4; `.dirty` is appended where files were changed
    none of these                    0+unknown
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

#: the version that is worked on as long as there is no tag
FIRST = "0.1.0"
UNKNOWN = "0+unknown"
#: a release, or a candidate for one, as PEP 440 writes them
TAG = re.compile(r"v(\d+\.\d+\.\d+(?:rc\d+)?)")
#: by default git abbreviates to what is unique in this clone: another clone would get another version
_ABBREV = "--abbrev=10"
#: seconds for one call of git
_LIMIT = 30


def version_of(root: Path, *, committed: bool = False) -> str:
    """Returns the version of the tree below `root`, or of its commit alone, without what was changed since.
    Raises SystemExit for a TRANSFER_VERSION or a tag that is no version."""
    given = os.environ.get("TRANSFER_VERSION", "")
    if given:
        if not re.fullmatch(r"\d[\w.]*(\+[\w.]+)?", given):
            raise SystemExit(f"TRANSFER_VERSION={given} is no version; one is 0.2.0, or 0.2.1.dev3+g1a2b3c4")
        return given
    # A tree inside another project's repository has that project's tags: only its own `.git` counts.
    if root.joinpath("PKG-INFO").exists():
        text = root.joinpath("PKG-INFO").read_text(encoding="utf-8")
        return str(re.findall(r"^Version: (.+)$", text, re.MULTILINE)[0])
    if root.joinpath(".git").exists():
        return _of_git(root, [] if committed else ["--dirty"])
    return UNKNOWN


def of_description(described: str) -> str:
    """Returns the version for what `git describe --long --tags` prints, such as `v0.2.0-3-g1a2b3c4-dirty`."""
    tag, commits, commit, *dirty = described.rsplit("-", 3 if described.endswith("-dirty") else 2)
    matched = TAG.fullmatch(tag)
    if matched is None:
        raise SystemExit(f"the tag {tag} is no version; one is v0.2.0, or v0.2.0rc1")
    if commits == "0" and not dirty:
        return matched[1]
    return f"{_next(matched[1])}.dev{commits}+{'.'.join([commit, *dirty])}"


def _next(version: str) -> str:
    """The smallest version that may follow: a development version stands before it."""
    head, last = re.fullmatch(r"(.*?)(\d+)", version, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{head}{int(last) + 1}"


def _of_git(root: Path, dirty: list[str]) -> str:
    described = _git(root, "describe", "--tags", "--long", *dirty, "--match", "v[0-9]*", _ABBREV)
    if described:
        return of_description(described)
    commits = _git(root, "rev-list", "--count", "HEAD")
    described = _git(root, "describe", "--always", *dirty, "--exclude", "*", _ABBREV)
    if not commits or not described:
        return UNKNOWN
    return f"{FIRST}.dev{commits}+g{described.replace('-', '.')}"


def _git(root: Path, *arguments: str) -> str:
    """Returns what git prints; nothing where it fails or is not installed."""
    # git refuses a tree of another user (a container's mount): this file, which is from there, already runs.
    command = ["git", "-c", f"safe.directory={root}", *arguments]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(version_of(Path(__file__).resolve().parents[1]))
