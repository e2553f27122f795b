"""Debian's slim base image, made by debootstrap, without a registry; with another Python if one is named.

It is kept in a folder, and imported into buildah's storage for each build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from deploy.docker.machine import KEYRING, RELEASE, Report, Unable, sources
from deploy.docker.steps import run_step

#: folders that Debian's slim image removes from every package
_SLIM = ("doc", "groff", "info", "linda", "lintian", "locale", "man")


def base_root(cache: Path, report: Report) -> Path:
    """Returns the folder with Debian's slim image: made once in `cache`, then kept.

    Raises Unable, StepFailed.
    """
    root = cache / f"debian-{RELEASE}-{os.uname().machine}"
    complete = root.with_name(f"{root.name}.complete")
    if complete.exists() and root.is_dir():
        return root
    mirror, _ = sources()
    if shutil.which("debootstrap") is None:
        raise Unable("debootstrap is not installed here: apt-get install debootstrap")
    if not KEYRING.exists():
        raise Unable(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    report(f"base: debootstrap of {RELEASE} (once, then kept in {cache})")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    command = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", RELEASE, str(root), mirror]
    run_step(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", *command],
        dict(os.environ),
        cache / "base.log",
    )
    _make_slim(root)
    _remove_traces(root)
    complete.touch()
    return root


def import_base(buildah: list[str], root: Path, name: str, log: Path) -> None:
    """Imports the folder as an image into buildah's storage. Raises StepFailed."""
    env = dict(os.environ)
    made = subprocess.run([*buildah, "from", "scratch"], capture_output=True, text=True, env=env, check=True)
    container = made.stdout.strip()
    run_step([*buildah, "add", "--quiet", container, str(root), "/"], env, log)
    run_step([*buildah, "commit", "--quiet", "--rm", container, name], env, log)


#: As docker.io/python:X-slim: a Python of its own in /usr/local, and the libraries that it is linked to.
_WITH_PYTHON = """\
FROM {base}
RUN apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates \\
        libbz2-1.0 libffi8 liblzma5 libncursesw6 libreadline8 libsqlite3-0 libssl3 libuuid1 tzdata zlib1g \\
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/*
COPY . /usr/local/
RUN ldconfig && rm -rf /var/cache/ldconfig/* && python3 -c "import ssl, sqlite3, ctypes, venv, lzma"
"""
_NOT_OF_PYTHON = ("lib/python3.*/test", "**/__pycache__", "share")


def write_with_python(place: Path, base: str) -> list[str]:
    """Writes how the base gets a Python from the folder that is built from. Returns buildah's arguments."""
    recipe, ignored = place / "with-python", place / "with-python.ignored"
    recipe.write_text(_WITH_PYTHON.format(base=base))
    ignored.write_text("\n".join(_NOT_OF_PYTHON) + "\n")
    return ["--file", str(recipe), "--ignorefile", str(ignored)]


def _make_slim(root: Path) -> None:
    """Makes it slim: dpkg skips documents, and installed ones are removed."""
    rules = [f"path-exclude /usr/share/{name}/*" for name in _SLIM]
    rules.insert(1, "path-include /usr/share/doc/*/copyright")
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text("\n".join(rules) + "\n")
    for name in _SLIM:
        for file in sorted((root / "usr/share" / name).rglob("*"), reverse=True):
            if file.is_symlink() or (file.is_file() and file.name != "copyright"):
                file.unlink()
            elif file.is_dir() and not any(file.iterdir()):
                file.rmdir()


def _remove_traces(root: Path) -> None:
    """Removes what debootstrap copied from this machine, and its downloads."""
    for name in ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list"):
        (root / name).unlink(missing_ok=True)
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        for file in (root / folder).rglob("*"):
            if file.is_file():
                file.unlink()
