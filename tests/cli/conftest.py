"""Runs the command `transfer` as a process, as a person does."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: seconds after which a command hangs
PATIENCE = 40.0


class Command:
    """One run of `transfer`. Its standard error is read as it comes."""

    def __init__(
        self, *arguments: str, stdin: bytes | None = None, program: tuple[str, ...] = ("-m", "transfer")
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._errors: queue.Queue[bytes] = queue.Queue()
        self._first: queue.Queue[bytes] = queue.Queue()
        self._said = b""
        self._output = b""
        self._threads = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        assert self.process.stdin is not None
        if stdin is not None:
            self.process.stdin.write(stdin)
        self.process.stdin.close()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.put(line)

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self._first.put(first)
        self._output = first + self.process.stdout.read()

    def first_line(self) -> str:
        """The first line of standard output, as soon as it is there; "" if it ended without one."""
        return self._first.get(timeout=PATIENCE).decode()

    def error_line(self) -> str:
        """The next line of standard error, as soon as it is there."""
        line = self._errors.get(timeout=PATIENCE)
        self._said += line
        return line.decode()

    def bound(self) -> str:
        """The endpoint that it says it is bound to."""
        while True:
            line = self._errors.get(timeout=PATIENCE)
            self._said += line
            if line.startswith(b"bound to "):
                return line.split()[-1].decode()

    def end(self) -> tuple[int, bytes, str]:
        """(exit code, standard output, standard error)."""
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.stop()
        while not self._errors.empty():
            self._said += self._errors.get()
        return code, self._output, self._said.decode()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    """start(arguments..., stdin=, program=) begins a command; what still runs at the end is killed."""
    running: list[Command] = []

    def begin(*arguments: object, stdin: bytes | None = None, **options: Any) -> Command:
        command = Command(*map(str, arguments), stdin=stdin, **options)
        running.append(command)
        return command

    yield begin
    for command in running:
        command.stop()


@pytest.fixture
def run(start: Callable[..., Command]) -> Callable[..., tuple[int, bytes, str]]:
    """run(arguments..., stdin=) -> (exit code, standard output, standard error)."""

    def complete(*arguments: object, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        return start(*arguments, stdin=stdin).end()

    return complete
