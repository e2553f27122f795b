"""The sources of a build: those of the commit, as a source distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from deploy.version import version_of
from deploy.wheels.archives import rewrite_sdist
from deploy.wheels.environments import Environment, Unable

#: seconds for git or setup.py
_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Source:
    """A commit. epoch: when it was made, in seconds since 1970: the time of all files in all archives."""

    version: str
    epoch: int
    sdist: Path

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of a build of it: always with the compiled core."""
        return {"TRANSFER_NEED_NATIVE": "1", "SOURCE_DATE_EPOCH": str(self.epoch)}

    def unpack(self, folder: Path) -> Path:
        """Unpacks it and returns the folder with setup.py. What is there is replaced."""
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(self.sdist) as archive:
            archive.extractall(folder, filter="data")
        (found,) = folder.iterdir()
        return found


def make_source(root: Path, place: Path, out: Path, environment: Environment) -> Source:
    """Makes the source distribution of HEAD in `out`. Changes that are not committed are not in it.
    Raises Unable."""
    if not root.joinpath(".git").exists():
        raise Unable("wheels are built of a commit: run this in a clone of the repository")
    epoch = int(_run(["git", "-C", str(root), "log", "-1", "--format=%ct"]))
    version = version_of(root, committed=True)
    folder = place / "commit"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed = place / "commit.tar"
    _run(["git", "-C", str(root), "archive", "--output", str(packed), "HEAD"])
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    variables = {"TRANSFER_VERSION": version, "SOURCE_DATE_EPOCH": str(epoch)}
    command = [str(environment.python), "setup.py", "--quiet", "sdist", "--dist-dir", str(out)]
    _run(command, folder=folder, **variables)
    sdist = out / f"tensor_transfer-{version}.tar.gz"
    rewrite_sdist(sdist, epoch)
    return Source(version, epoch, sdist)


def _run(command: list[str], folder: Path | None = None, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=_LIMIT,
        env={**os.environ, **variables},
    )  # fmt: skip
    if done.returncode:
        raise Unable(f"`{' '.join(command)}` failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
