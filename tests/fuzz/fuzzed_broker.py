"""`transfer broker` with all fronts as a process, its good clients, and the resources that it holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.core.raw_frames import eventually

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"
#: what hostile clients must not cause in a log
_WRONG = ("Traceback", " ERROR ", " CRITICAL ", "Exception ignored", "was destroyed", "never retrieved")
#: seconds for a process to start or end
_PATIENCE = 60
LISTEN_OPTIONS = (
    *("--ttp", "0", "--pybroker", "0", "--rqueue", "0", "--http", "0", "--spool", f"{HERE}:0"),
    *("--requests", f"{HERE}:0", "--pushes", f"{HERE}:0", "--subscriptions", f"{HERE}:0"),
    *("--abtp", f"tcp://{HERE}:0", "--abtp-pub", f"tcp://{HERE}:0"),
)


class Held:
    """What a process holds at one moment. memory: bytes that are its own. sockets: descriptors of these."""

    def __init__(self, pid: int) -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        self.memory = int(fields["RssAnon"].split()[0]) * 1024
        self.threads = int(fields["Threads"])
        self.sockets = 0
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                self.sockets += os.readlink(entry).startswith("socket:")
            except OSError:
                continue  # closed meanwhile

    def __repr__(self) -> str:
        return f"{self.memory >> 20} MiB, {self.threads} threads, {self.sockets} sockets"


class Process:
    """A program that says a line when it is there. Its errors go to a file."""

    def __init__(self, log: Path, *words: str, **environment: str) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, env=os.environ | environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self.pid = self.process.pid
        self.first = self.line()

    def line(self) -> str:
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return line

    def asked(self) -> Any:
        """What it answers to a line."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(_PATIENCE)
        finally:
            self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()


class FuzzedBroker:
    """A broker with all fronts."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self.folder = folder
        self.process = Process(
            folder.with_suffix(".log"), "-m", "transfer", "broker", "--data", str(folder), "--json",
            *LISTEN_OPTIONS, *options, TRANSFER_LOCAL="on", **environment,
        )  # fmt: skip
        self.places = json.loads(self.process.first)
        self._log_at = 0

    def place(self, target: str) -> tuple[str, int]:
        """(host, port) of a talk's target."""
        names = [*self.places["ports"], *self.places["endpoints"]]
        name = max((name for name in names if f"{target} ".startswith(f"{name} ")), key=len)
        if name in self.places["ports"]:
            return HERE, self.places["ports"][name]
        return HERE, int(self.places["endpoints"][name].rpartition(":")[2])

    def held(self) -> Held:
        return Held(self.process.pid)

    def errors(self) -> str:
        """What it has logged since the last look, if there is an exception in it that is not foreseen."""
        with self.process.log.open() as file:
            file.seek(self._log_at)
            said = file.read()
            self._log_at = file.tell()
        return said if any(word in said for word in _WRONG) else ""

    def settled(self, before: Held, more_threads: int, more_sockets: int = 0) -> Held:
        """What it holds when hostile connections are gone. more_threads: that its pools may begin.
        more_sockets: that it keeps for a while without a peer."""
        eventually(lambda: self.held().sockets <= before.sockets + more_sockets, 40)
        eventually(lambda: self.held().threads <= before.threads + more_threads, 30)
        return self.held()


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[FuzzedBroker]:
    """A broker on a new folder; killed at the end, if it was not ended."""
    broker = FuzzedBroker(folder, *options, **environment)
    try:
        yield broker
    finally:
        broker.process.close()


@contextmanager
def good_clients(broker: FuzzedBroker, **environment: str) -> Iterator[Process]:
    """One for each port, in a process; they use shared memory where the port offers it."""
    log = broker.folder.with_suffix(".good.log")
    environment["TRANSFER_LOCAL"] = "on"
    process = Process(log, "-m", "tests.fuzz.good_clients", json.dumps(broker.places), **environment)
    try:
        yield process
    finally:
        process.close()
