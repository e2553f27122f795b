"""Brokers as processes of their own, which tests kill.

Started once, as a program, it has everything imported; for each folder that it reads on its input it forks a
broker, and writes its process id and where it listens, as JSON in a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.broker.in_process_broker import running
from transfer.broker.config.settings import AbtpEndpoints


def serve(folder, **changes):
    """Runs a broker until this process is killed."""
    with running(Path(folder), first_delay=0.01, **changes) as broker:
        found = {"pid": os.getpid(), "endpoints": broker.endpoints, "ports": broker.ports}
        print(json.dumps(found), flush=True)
        while True:
            signal.pause()


def main(abtp=""):
    changes = {"abtp": AbtpEndpoints(abtp, abtp)} if abtp else {}
    for line in sys.stdin:
        if (process := os.fork()) == 0:
            serve(line.rstrip("\n"), **changes)
        os.waitpid(process, 0)
        print("gone", flush=True)


class BrokerProcesses:
    """The program; `start` and `kill` one broker after the other. `with` ends it. abtp: where that front
    listens, if it shall."""

    def __init__(self, abtp=""):
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.broker.broker_processes", *([abtp] if abtp else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._pid = 0

    def start(self, folder):
        """Where the broker listens: (endpoints, ports)."""
        self._program.stdin.write(f"{folder}\n")
        self._program.stdin.flush()
        found = json.loads(self._program.stdout.readline())
        self._pid = found["pid"]
        return found["endpoints"], found["ports"]

    def kill(self):
        """At once, without a word; returns when the process is gone."""
        os.kill(self._pid, signal.SIGKILL)
        self._pid = 0
        assert self._program.stdout.readline() == "gone\n"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self._pid:
            self.kill()
        self._program.stdin.close()
        self._program.wait(10)
        self._program.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
