"""Builds the image's targets with buildah, which needs neither a daemon nor a registry.

chroot isolates each RUN, which also works on a machine inside a container. A step gets this machine's
mirrors, proxies and certificates by mounts, which do not stay in the image.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.docker.base import import_base, write_with_python
from deploy.docker.machine import Given, Report
from deploy.docker.steps import run_step
from deploy.version import version_of

_BASE, _WITH_PYTHON = "localhost/debian-slim", "localhost/python-slim"


@dataclass(frozen=True, slots=True)
class Settings:
    """An image's settings, from its configuration."""

    env: dict[str, str]
    labels: dict[str, str]
    user: str
    workdir: str
    entrypoint: list[str]
    command: list[str]
    health: list[str]
    volumes: list[str]
    ports: list[int]
    stop_signal: str


class Builder:
    """buildah with a separate storage below `place`, which stays there."""

    def __init__(self, place: Path, given: Given, report: Report) -> None:
        self._place, self._given, self._report = place, given, report
        storage = ["--root", str(place / "storage"), "--runroot", str(place / "run")]
        self._buildah = ["buildah", *storage, "--storage-driver", "vfs"]
        self._log = place / "build.log"
        self._base = _BASE

    def import_base(self, root: Path) -> None:
        """Imports the base of the targets. Raises StepFailed."""
        import_base(self._buildah, root, _BASE, self._log)

    def add_python(self, prefix: Path) -> Path:
        """The base has this Python from now on. Returns the folder with its files. Raises StepFailed."""
        self._build(prefix, _WITH_PYTHON, write_with_python(self._place, _BASE))
        self._base = _WITH_PYTHON
        self._report(f"base: with the Python of {prefix}")
        return self._root(_WITH_PYTHON)

    def build(self, context: Path, target: str) -> None:
        """Builds a target of the Dockerfile; built stages are reused. Raises StepFailed."""
        arguments = ["--build-arg", f"BASE={self._base}", "--build-arg", f"VERSION={version_of(context)}"]
        arguments += ["--target", target, "--file", str(context / "deploy/docker/Dockerfile")]
        self._build(context, _name(target), arguments)
        self._report(f"{target}: built")

    def _build(self, context: Path, name: str, arguments: list[str]) -> None:
        command = [*self._buildah, "bud", "--isolation", "chroot", "--format", "docker", "--layers"]
        command += ["--pull=never", "--tag", name, *arguments]
        for inside, path in self._mounts().items():
            command += ["--volume", f"{path}:{inside}:ro"]
        # Arguments that every Dockerfile has: they are in no image, and in no layer's key.
        for name in self._given.proxies:
            command += ["--build-arg", name]
        run_step([*command, str(context)], {**os.environ, **self._given.proxies}, self._log)

    def root(self, target: str) -> Path:
        """Returns the folder with a built target's files, of a new container."""
        return self._root(_name(target))

    def _root(self, name: str) -> Path:
        return Path(self._output("mount", self._output("from", "--pull=never", name)))

    def settings(self, target: str) -> Settings:
        """Returns a built target's settings."""
        config = json.loads(self._output("inspect", "--type", "image", _name(target)))["Docker"]["config"]
        return Settings(
            env=dict(text.split("=", 1) for text in config["Env"]),
            labels=config.get("Labels") or {},
            user=config["User"],
            workdir=config["WorkingDir"] or "/",
            entrypoint=config["Entrypoint"] or [],
            command=config["Cmd"] or [],
            health=(config.get("Healthcheck") or {}).get("Test", [])[1:],
            volumes=sorted(config.get("Volumes") or {}),
            ports=sorted(int(port.split("/")[0]) for port in config.get("ExposedPorts") or {}),
            stop_signal=config.get("StopSignal") or "SIGTERM",
        )

    def _mounts(self) -> dict[str, Path]:
        """Returns what a step sees of this machine, by its path in the step's root."""
        folder = self._place / "machine"
        folder.mkdir(exist_ok=True)
        mounts = dict(self._given.binds)
        for number, (inside, text) in enumerate(self._given.files.items()):
            file = folder / str(number)
            file.write_text(text)
            mounts[inside] = file
        return mounts

    def _output(self, *arguments: str) -> str:
        return subprocess.run(
            [*self._buildah, *arguments], capture_output=True, text=True, check=True, timeout=300
        ).stdout.strip()


def _name(target: str) -> str:
    return f"localhost/transfer:{target}"
