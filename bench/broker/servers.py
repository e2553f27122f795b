"""The servers that the broker is compared with, each on a separate folder and port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.work import PATIENCE, Failed, Skipped

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    pid: int


def versions() -> dict[str, str]:
    """Returns the versions of the installed servers."""
    return {
        name: subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        for name in ("redis-server", "nats-server")
        if shutil.which(name)
    }


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """Runs Redis, which syncs its file before it answers."""
    port = _free_port()
    with _running(
        port,
        *("redis-server", "--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""),
        *("--daemonize", "no", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning"),
    ) as server:
        yield server


@contextmanager
def nats_server(folder: Path) -> Iterator[Server]:
    """Runs NATS with JetStream in files. It syncs them every two minutes, not for each message."""
    port = _free_port()
    file = folder / "nats.conf"
    file.write_text(
        f'host: {HOST}; port: {port}; max_payload: 8MB; jetstream {{store_dir: "{folder / "jetstream"}"}}\n'
    )
    with _running(port, "nats-server", "-c", str(file)) as server:
        yield server


@contextmanager
def _running(port: int, *command: str) -> Iterator[Server]:
    if shutil.which(command[0]) is None:
        raise Skipped(f"{command[0]} is not installed")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise Failed(f"{command[0]} did not start")
            time.sleep(0.02)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port
