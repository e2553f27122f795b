"""Spools and readers in processes of their own, which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

_SPOOL = """
import sys
from transfer.spool import Spool
spool = Spool(sys.argv[1], sys.argv[2])
print(spool.endpoint, flush=True)
sys.stdin.read()
spool.close()
"""

_READER = """
import sys
from transfer.spool.client.run_client import RunClient
client = RunClient(sys.argv[1], timeout=20)
print(client.open("group").visible, flush=True)
sys.stdin.read()
"""


class Process:
    """A Python program that prints a line when it is there, and ends with its standard input."""

    def __init__(self, program, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.line = self._process.stdout.readline().strip()

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """As kill -9 does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def end(self):
        """As it should; the exit code."""
        self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        return code


class SpoolProcess(Process):
    """A spool on a folder. endpoint: where it is asked; given back to begin it there anew."""

    def __init__(self, folder, endpoint="tcp://127.0.0.1:0"):
        super().__init__(_SPOOL, str(folder), endpoint)
        self.endpoint = self.line
        assert self.endpoint, "the spool did not begin"

    def memory(self):
        """Bytes that are its own, without what is mapped from files."""
        with open(f"/proc/{self.pid}/status") as status:
            told = dict(line.split(":", 1) for line in status)
        return (int(told["RssAnon"].split()[0]) + int(told["RssShmem"].split()[0])) * 1024


@contextmanager
def reader(url):
    """A process that has opened a run."""
    process = Process(_READER, url)
    try:
        yield process
    finally:
        process.kill()
