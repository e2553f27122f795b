"""Runs a finished root as a container engine does: as the image's user, process 1 of new namespaces, the file
system read-only except for the volumes and /tmp, a network without a route."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from deploy.docker.image import Settings
from deploy.docker.namespaces import entering, inside, joining

#: seconds for a command in the running container
_LIMIT = 60


class ProofFailed(Exception):
    """A check of the image has failed."""


class Container:
    """A running image. arguments: after the entry point, instead of CMD. volumes: their folders here."""

    def __init__(
        self, root: Path, settings: Settings, volumes: Mapping[str, Path], arguments: Sequence[str] = ()
    ) -> None:
        self._root, self._settings = root, settings
        command = [*settings.entrypoint, *(arguments or settings.command)]
        self._log = root.with_name(f"{root.name}.output")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                entering(
                    root, command, user=settings.user, folder=settings.workdir,
                    writable={**volumes, "/tmp": None},
                ),
                env=dict(settings.env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # With process 1 everything in its namespace ends. It does not die with unshare: the kernel drops that
        # setting when a process changes its user.
        for number in self._children():
            os.kill(number, signal.SIGKILL)
        self._process.kill()
        self._process.wait(_LIMIT)

    @property
    def output(self) -> str:
        """The output of this container and of earlier ones on this root."""
        return self._log.read_text(errors="replace")

    def start(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command in the container; the caller waits for its end."""
        settings = self._settings
        return subprocess.Popen(
            joining(self._first(), self._root, command, user=settings.user, folder=settings.workdir),
            env={**settings.env, **(env or {})}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *command: str, env: Mapping[str, str] | None = None, code: int | None = 0) -> str:
        """Returns a command's output. Raises ProofFailed if it ends with another status than `code`."""
        return self.ended(self.start(*command, env=env), code, " ".join(command)[:80])

    def ended(self, process: subprocess.Popen[str], code: int | None, name: str) -> str:
        """As `run`, for a started command."""
        try:
            output, errors = process.communicate(timeout=_LIMIT)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise ProofFailed(f"`{name}` did not end within {_LIMIT} s") from error
        if code is not None and process.returncode != code:
            raise ProofFailed(f"`{name}` ended with {process.returncode}:\n{output}{errors}")
        return output

    def healthy(self) -> bool:
        """Whether the image's health check passes."""
        process = self.start(*self._settings.health)
        self.ended(process, None, "the health check")
        return process.returncode == 0

    def await_health(self, seconds: float) -> float:
        """Waits until it is healthy; returns the seconds. Raises ProofFailed."""
        begun = time.monotonic()
        while not self.healthy():
            if self._process.poll() is not None or time.monotonic() > begun + seconds:
                raise ProofFailed(f"not healthy within {seconds} s; its output:\n{self.output}")
            time.sleep(0.2)
        return time.monotonic() - begun

    def stop(self, seconds: float) -> int:
        """Sends the image's stop signal; returns the exit status. Raises ProofFailed if it continues."""
        os.kill(self._first(), getattr(signal, self._settings.stop_signal))
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ProofFailed(f"still running {seconds} s after {self._settings.stop_signal}") from error

    def _children(self) -> list[int]:
        """Returns process 1 as this machine numbers it, if it exists."""
        number = self._process.pid
        if self._process.poll() is not None:
            return []
        return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def _first(self) -> int:
        """Returns its process 1, as this machine numbers it. Raises ProofFailed if it has ended."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self._process.poll() is None:
            for number in self._children():
                # Before that it is still the shell that makes its mounts.
                if os.readlink(f"/proc/{number}/root") == str(inside(self._root, "/")):
                    return number
            time.sleep(0.02)
        raise ProofFailed(f"it has ended, or never started; its output:\n{self.output}")
